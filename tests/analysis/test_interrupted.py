"""Ctrl-C in every loop of an analysis: in the data, in a metric, at any operator."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from qtune.analysis.quant_analysis import QuantAnalysis
from qtune.analysis.raising import _Before
from qtune.capture import restore
from qtune.nn import float_mode
from qtune.nn.qat import QATOp
from qtune.profiler import kept_state
from qtune.profiler.metric import Metric
from qtune.quantization import FakeQuantState, set_fake_quantize

from .nets import Block, assert_same, calibrated, fingerprint

DATA = [torch.rand(1, 3, 8, 8, generator=torch.Generator().manual_seed(i)) for i in range(3)]
GOAL = {"": {"metric": Metric.ATOL, "threshold": 0.0, "max_tuned_stubs": 3}}
LOOPS: dict[str, Callable[[QuantAnalysis], Any]] = {
    "bad cases": lambda qa: qa.auto_find_bad_case(DATA),
    "bad cases, dumped": lambda qa: qa.auto_find_bad_case(DATA, dump_in_run=True),
    "run": lambda qa: qa.run(),
    "sensitivity": lambda qa: qa.sensitivity(),
    "sensitivity v2": lambda qa: qa.sensitivity(use_sensitivity_v2=True),
    "tune": lambda qa: qa.tune_bad_case(GOAL),
}
AFTER_A_RUN: dict[str, Callable[[QuantAnalysis], Any]] = {
    "compare": lambda qa: qa.compare_per_layer(),
    "old style": lambda qa: old_style(qa),
}
OTHERS: dict[str, Callable[[QuantAnalysis], Any]] = {
    "set": lambda qa: qa.set_bad_case(DATA[1]),
    "load": lambda qa: qa.load_bad_case(),
    "save": lambda qa: qa.save_bad_case(),
    "names": lambda qa: qa.output_names(),
    "clean": lambda qa: qa.clean(),
    "profiles": lambda qa: profiles(qa),
}


def old_style(qa: QuantAnalysis) -> Any:
    qa.save_bad_case()
    return qa.compare_per_layer(), qa.sensitivity()


def profiles(qa: QuantAnalysis) -> None:
    folders = [str(qa.out_dir / "op_infos" / side) for side in ("baseline", "analysis")]
    qa.set_model_profiler_dir(folders[0], folders[1])
    qa.compare_per_layer()


def test_every_public_method_is_here() -> None:
    """A new method has to be added to one of the tables above."""
    tested = {**LOOPS, **AFTER_A_RUN, **OTHERS}.values()
    used = {name for call in tested for name in called_names(call)}
    public = {n for n, v in vars(QuantAnalysis).items() if callable(v) and not n.startswith("_")}
    assert public <= used


def called_names(call: Callable[..., Any]) -> set[str]:
    found = set(call.__code__.co_names)
    helpers = [globals()[name] for name in found if name in ("old_style", "profiles")]
    return found.union(*(helper.__code__.co_names for helper in helpers))


class Setting:
    """An analysis that has its bad case and its tables, and models in states of the user's own."""

    def __init__(self, folder: Path) -> None:
        self.model = Block().eval()
        self.calib = calibrated(self.model, *DATA[:2])
        self.qa = QuantAnalysis(self.model, self.calib, "fake_quant", out_dir=str(folder))
        self.qa.auto_find_bad_case(DATA)
        self.qa.sensitivity(use_sensitivity_v2=True)
        self.qa.run()
        self.operators = [m for m in self.calib.modules() if isinstance(m, QATOp)]
        set_fake_quantize(self.operators[1].train(), FakeQuantState.QAT)
        for parameter in self.calib.parameters():
            parameter.grad = torch.ones_like(parameter)

    def interrupted(self, loop: str, *, at: nn.Module, call: int) -> bool:
        """Whether Ctrl-C at that call of ``at`` ended the loop; all is as it was after it."""
        calls: list[int] = []

        def hook(*_: Any) -> None:
            calls.append(1)
            if len(calls) == call:
                raise KeyboardInterrupt

        handle = at.register_forward_hook(hook)
        before = fingerprint(self.model), fingerprint(self.calib)
        try:
            (LOOPS | AFTER_A_RUN)[loop](self.qa)
        except KeyboardInterrupt:
            return True
        finally:
            assert_same(before[0], self.model)
            assert_same(before[1], self.calib)
            handle.remove()
        return False


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    return Setting(tmp_path / "out")


@pytest.mark.parametrize("loop", LOOPS)
def test_at_any_operator_the_models_are_left_as_they_were(setting: Setting, loop: str) -> None:
    ended = [
        setting.interrupted(loop, at=op, call=call) for call in (1, 2) for op in setting.operators
    ]
    assert ended[0]
    assert sum(ended) >= len(setting.operators)


@pytest.mark.parametrize("loop", AFTER_A_RUN)
def test_behind_a_run_too(setting: Setting, loop: str) -> None:
    ended = [setting.interrupted(loop, at=op, call=1) for op in setting.operators]
    assert any(ended)


@pytest.mark.parametrize("name", LOOPS | AFTER_A_RUN | OTHERS)
def test_after_success_the_models_are_as_before(setting: Setting, name: str) -> None:
    before = fingerprint(setting.model), fingerprint(setting.calib)
    (LOOPS | AFTER_A_RUN | OTHERS)[name](setting.qa)
    assert_same(before[0], setting.model)
    assert_same(before[1], setting.calib)


@pytest.mark.parametrize("loop", ["bad cases", "run"])
def test_in_the_float_model_too(setting: Setting, loop: str) -> None:
    assert setting.interrupted(loop, at=setting.model.conv, call=1)


ENDS = [KeyboardInterrupt, ValueError]


def stopping(after: int, error: type[BaseException]) -> Iterator[Tensor]:
    yield from DATA[:after]
    torch.rand(1)
    raise error


@pytest.mark.parametrize("dump", [False, True])
@pytest.mark.parametrize("error", ENDS)
def test_in_the_data_the_earlier_search_stays(
    setting: Setting, error: type[BaseException], dump: bool
) -> None:
    before = fingerprint(setting.model), fingerprint(setting.calib)
    report = setting.qa.badcase_report
    written = {p: p.read_bytes() for p in setting.qa.out_dir.rglob("*") if p.is_file()}
    with pytest.raises(error):
        setting.qa.auto_find_bad_case(stopping(2, error), dump_in_run=dump)
    assert_same(before[0], setting.model)
    assert_same(before[1], setting.calib)
    assert setting.qa.badcase_report is report
    assert {p: p.read_bytes() for p in setting.qa.out_dir.rglob("*") if p.is_file()} == written


@pytest.mark.parametrize("loop", ["bad cases", "compare", "sensitivity", "sensitivity v2", "tune"])
@pytest.mark.parametrize(("call", "error"), [(1, KeyboardInterrupt), (3, ValueError)])
def test_in_a_metric(setting: Setting, loop: str, call: int, error: type[BaseException]) -> None:
    calls: list[int] = []

    @Metric.register("stopping", False, "pertensor")
    def metric(a: Tensor, b: Tensor) -> Tensor:
        calls.append(1)
        torch.rand(1)
        if len(calls) == call:
            raise error
        return (a - b).abs().max()

    goal = {"": {**GOAL[""], "metric": "stopping"}}
    loops: dict[str, Callable[[], Any]] = {
        "bad cases": lambda: qa.auto_find_bad_case(DATA),
        "compare": lambda: qa.compare_per_layer(),
        "sensitivity": lambda: qa.sensitivity("stopping"),
        "sensitivity v2": lambda: qa.sensitivity("stopping", use_sensitivity_v2=True),
        "tune": lambda: qa.tune_bad_case(goal),
    }
    try:
        qa = QuantAnalysis(
            setting.model,
            setting.calib,
            "fake_quant",
            out_dir=str(setting.qa.out_dir),
            metric_list=["stopping", "ATOL"],
        )
        qa.load_bad_case()
        if loop.startswith("sensitivity"):
            qa.set_bad_case(DATA[0])
        elif loop == "compare":
            qa.run()
        before = fingerprint(setting.model), fingerprint(setting.calib)
        with pytest.raises(error):
            loops[loop]()
    finally:
        Metric.unregister("stopping")
    assert_same(before[0], setting.model)
    assert_same(before[1], setting.calib)


@pytest.mark.parametrize("loop", LOOPS)
def test_an_interrupted_analysis_gives_the_same_result_when_it_is_run_again(
    setting: Setting, loop: str
) -> None:
    fresh = copy.deepcopy(setting.calib)
    assert setting.interrupted(loop, at=setting.operators[-1], call=1)
    again = LOOPS[loop](setting.qa)
    qa = QuantAnalysis(setting.model, fresh, "fake_quant", out_dir=str(setting.qa.out_dir))
    qa.load_bad_case()
    assert repr(LOOPS[loop](qa)) == repr(again)


def interrupted_once_in(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, *, after: int
) -> list[int]:
    """Ctrl-C comes in the call of ``owner.name`` behind ``after`` others; returns the calls."""
    calls: list[int] = []
    original = getattr(owner, name)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) == after + 1:
            raise KeyboardInterrupt
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, name, wrapped)
    return calls


@pytest.mark.parametrize("after", [0, 1])
def test_while_stubs_are_given_back(
    setting: Setting, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    before = fingerprint(setting.calib)
    calls = interrupted_once_in(monkeypatch, _Before, "give_back", after=after)
    with pytest.raises(KeyboardInterrupt):
        setting.qa.tune_bad_case(GOAL)
    assert len(calls) > after + 1
    assert_same(before, setting.calib)


@pytest.mark.parametrize("state", ["modes", "buffers", "random"])
def test_while_a_model_is_restored(
    setting: Setting, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    before = fingerprint(setting.model), fingerprint(setting.calib)
    owner: Any = {"modes": float_mode._Modes, "buffers": kept_state._Content}.get(state)
    calls = interrupted_once_in(monkeypatch, owner or restore._RandomState, "restore", after=0)
    with pytest.raises(KeyboardInterrupt):
        setting.qa.run()
    assert len(calls) > 1
    assert_same(before[0], setting.model)
    assert_same(before[1], setting.calib)


@pytest.mark.parametrize("place", ["before", "after"])
def test_while_earlier_cases_are_set_aside(
    setting: Setting, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    written = {p: p.read_bytes() for p in setting.qa.out_dir.rglob("*") if p.is_file()}
    rename = Path.rename

    def stop(path: Path, target: Path) -> Any:
        if place == "after":
            rename(path, target)
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "rename", stop)
    with pytest.raises(KeyboardInterrupt):
        setting.qa.auto_find_bad_case(DATA)
    assert {p: p.read_bytes() for p in setting.qa.out_dir.rglob("*") if p.is_file()} == written
