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
from qtune.nn.qat import QATOp
from qtune.profiler.metric import Metric
from qtune.quantization import FakeQuantState, set_fake_quantize

from .nets import Block, assert_same, calibrated, fingerprint

DATA = [torch.rand(1, 3, 8, 8, generator=torch.Generator().manual_seed(i)) for i in range(3)]
GOAL = {"": {"metric": Metric.ATOL, "threshold": 0.0, "max_tuned_stubs": 3}}
LOOPS: dict[str, Callable[[QuantAnalysis], Any]] = {
    "bad cases": lambda qa: qa.auto_find_bad_case(DATA),
    "run": lambda qa: qa.run(),
    "sensitivity": lambda qa: qa.sensitivity(),
    "sensitivity v2": lambda qa: qa.sensitivity(use_sensitivity_v2=True),
    "tune": lambda qa: qa.tune_bad_case(GOAL),
}


class Setting:
    """An analysis that has its bad case and its tables, and models in states of the user's own."""

    def __init__(self, folder: Path) -> None:
        self.model = Block().eval()
        self.calib = calibrated(self.model, *DATA[:2])
        self.qa = QuantAnalysis(self.model, self.calib, "fake_quant", out_dir=str(folder))
        self.qa.auto_find_bad_case(DATA)
        self.qa.sensitivity(use_sensitivity_v2=True)
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
            LOOPS[loop](self.qa)
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


@pytest.mark.parametrize("loop", ["bad cases", "run"])
def test_in_the_float_model_too(setting: Setting, loop: str) -> None:
    assert setting.interrupted(loop, at=setting.model.conv, call=1)


def stopping(after: int) -> Iterator[Tensor]:
    yield from DATA[:after]
    torch.rand(1)
    raise KeyboardInterrupt


def test_in_the_data_the_earlier_search_stays(setting: Setting) -> None:
    before = fingerprint(setting.model), fingerprint(setting.calib)
    report = setting.qa.badcase_report
    with pytest.raises(KeyboardInterrupt):
        setting.qa.auto_find_bad_case(stopping(2))
    assert_same(before[0], setting.model)
    assert_same(before[1], setting.calib)
    assert setting.qa.badcase_report is report


@pytest.mark.parametrize("loop", ["bad cases", "sensitivity", "sensitivity v2", "tune"])
@pytest.mark.parametrize("call", [1, 3])
def test_in_a_metric(setting: Setting, loop: str, call: int) -> None:
    calls: list[int] = []

    @Metric.register("stopping", False, "pertensor")
    def metric(a: Tensor, b: Tensor) -> Tensor:
        calls.append(1)
        torch.rand(1)
        if len(calls) == call:
            raise KeyboardInterrupt
        return (a - b).abs().max()

    goal = {"": {**GOAL[""], "metric": "stopping"}}
    loops: dict[str, Callable[[], Any]] = {
        "bad cases": lambda: qa.auto_find_bad_case(DATA),
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
        before = fingerprint(setting.model), fingerprint(setting.calib)
        with pytest.raises(KeyboardInterrupt):
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
