"""Sequence models: what frame 2 uses of frame 1 is kept with the bad case."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from qtune.analysis.quant_analysis import QuantAnalysis
from qtune.capture.inputs import Inputs
from qtune.errors import AnalysisError
from qtune.profiler.kept_state import attributes_kept, read_attributes, set_attributes
from qtune.profiler.observe import run_model
from qtune.quantization import hbdk4

from .nets import assert_same, calibrated, fingerprint

ATTRS = ("memory.prev",)


class Memory(nn.Module):
    """``prev`` of a frame is the result of the frame before."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 1)
        self.register_buffer("prev", torch.zeros(1, 3, 4, 4))

    def forward(self, x: Tensor) -> Tensor:
        self.prev = torch.tanh(self.conv(x) + 0.5 * self.prev)
        return self.prev


class Tracker(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.memory = Memory()
        self.head = nn.Conv2d(3, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.memory(x))


class Setting:
    def __init__(self, folder: Path) -> None:
        torch.manual_seed(0)
        self.folder = folder
        self.model = Tracker().eval()
        self.frames = [torch.rand(1, 3, 4, 4) * scale for scale in (1.0, 0.5, 1.5, 0.7)]
        self.calib = self._calibrated()
        for model in (self.model, self.calib):
            model.get_submodule("memory").prev = torch.full((1, 3, 4, 4), 0.25)

    def _calibrated(self) -> Any:
        with torch.no_grad():
            return calibrated(self.model, *self.frames)

    def analysis(self, name: str = "out", **options: Any) -> QuantAnalysis:
        out = str(self.folder / name)
        return QuantAnalysis(self.model, self.calib, "fake_quant", out_dir=out, **options)

    def outputs_in_order(self, model: nn.Module) -> list[Tensor]:
        """What the model gives frame by frame, from its own state."""
        before = read_attributes(model, ATTRS)
        found = [run_model(model, Inputs(frame)) for frame in self.frames]
        set_attributes(model, before)
        return found


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    return Setting(tmp_path)


@pytest.mark.parametrize("dump", [False, True])
def test_a_case_runs_from_the_state_that_it_was_found_in(setting: Setting, dump: bool) -> None:
    expected = [setting.outputs_in_order(m) for m in (setting.model, setting.calib)]
    before = fingerprint(setting.model), fingerprint(setting.calib)
    qa = setting.analysis()
    report = qa.auto_find_bad_case(
        iter(setting.frames), cached_attrs=ATTRS, dump_in_run=dump, topk=4
    )
    for index in report.indices:
        atol = (expected[0][index] - expected[1][index]).abs().max()
        assert report.values[""]["ATOL"][index] == float(atol)
    for index in (1, 3):
        qa.run(index=index)
        layers = qa.compare_per_layer().to_pandas()
        assert layers["ATOL"].iloc[-1] == report.values[""]["ATOL"][index]
    assert_same(before[0], setting.model)
    assert_same(before[1], setting.calib)


def test_the_state_is_stored_with_the_case_and_loaded(setting: Setting) -> None:
    report = setting.analysis().auto_find_bad_case(setting.frames, cached_attrs=ATTRS, topk=4)
    content = torch.load(setting.folder / "out" / "badcase" / "2.pt")
    first = read_attributes(setting.model, ATTRS)["memory.prev"]
    stored = content["baseline_attributes"]["memory.prev"]
    assert not torch.equal(stored, first)
    assert not torch.equal(stored, content["analysis_attributes"]["memory.prev"])
    other = setting.analysis("other")
    other.load_bad_case(str(setting.folder / "out"))
    other.run(index=2)
    layers = other.compare_per_layer().to_pandas()
    assert layers["ATOL"].iloc[-1] == report.values[""]["ATOL"][2]


@pytest.mark.parametrize("v2", [False, True])
def test_every_ablation_starts_from_that_state(setting: Setting, v2: bool) -> None:
    qa = setting.analysis()
    qa.auto_find_bad_case(setting.frames, cached_attrs=ATTRS)
    before = fingerprint(setting.calib)
    first = qa.sensitivity(use_sensitivity_v2=v2)
    assert repr(qa.sensitivity(use_sensitivity_v2=v2)) == repr(first)
    assert_same(before, setting.calib)
    alone = qa.sensitivity(use_sensitivity_v2=v2, prefixes=("head",))[""]
    rows, few = (first[""][0].rows, alone[0].rows) if v2 else (first[""], alone)
    assert few
    assert all(row in rows for row in few)


def test_tuning_starts_from_that_state_each_time(setting: Setting) -> None:
    qa = setting.analysis()
    report = qa.auto_find_bad_case(setting.frames, cached_attrs=ATTRS)
    (index,) = report.cases_of("", report_metric())
    qa.sensitivity(use_sensitivity_v2=True)
    goal = {"": {"metric": "ATOL", "threshold": 0.0, "max_tuned_stubs": 2}}
    tuned = qa.tune_bad_case(goal)[""][0].column("tuned_cumulative_ATOL")
    values = [value for value in tuned if value is not None]
    worst = report.values[""]["ATOL"][index]
    assert values == sorted(values, reverse=True)
    assert all(value < worst for value in values)


def report_metric() -> Any:
    from qtune.profiler.metric import Metric

    return Metric.ATOL


def test_a_case_by_hand_has_the_state_that_is_given(setting: Setting) -> None:
    qa = setting.analysis()
    states = [torch.rand(1, 3, 4, 4) for _ in range(2)]
    before = fingerprint(setting.model), fingerprint(setting.calib)
    qa.set_bad_case(setting.frames[0], {"memory.prev": states[0]}, {"memory.prev": states[1]})
    qa.run()
    infos = {
        side: [torch.load(p) for p in sorted((qa.out_dir / "op_infos" / side).glob("*.opinfo"))]
        for side in ("baseline", "analysis")
    }
    for side, state in zip(infos, states, strict=True):
        halved = next(info for info in infos[side] if info.name.startswith("_generated_mul"))
        assert (halved.output[0] - 0.5 * state).abs().max() < 0.01  # one int8 step of 0.5 / 127
    assert_same(before[0], setting.model)
    assert_same(before[1], setting.calib)


def test_without_names_the_models_still_get_their_own_state_back(setting: Setting) -> None:
    before = fingerprint(setting.model), fingerprint(setting.calib)
    qa = setting.analysis()
    qa.auto_find_bad_case(setting.frames)
    qa.run()
    qa.sensitivity()
    assert_same(before[0], setting.model)
    assert_same(before[1], setting.calib)


class Stop(Exception):
    pass


def test_after_an_error_in_the_data_the_state_is_the_users(setting: Setting) -> None:
    def frames() -> Any:
        yield from setting.frames[:2]
        raise Stop

    before = fingerprint(setting.model), fingerprint(setting.calib)
    with pytest.raises(Stop):
        setting.analysis().auto_find_bad_case(frames(), cached_attrs=ATTRS)
    assert_same(before[0], setting.model)
    assert_same(before[1], setting.calib)


def test_what_a_model_lacks_is_named(setting: Setting) -> None:
    qa = setting.analysis()
    with pytest.raises(AnalysisError, match="Tracker has no attribute 'memory.next'"):
        qa.auto_find_bad_case(setting.frames, cached_attrs=("memory.next",))
    with pytest.raises(AnalysisError, match="can't become a float32|can't become a torch.float32"):
        qa.set_bad_case(setting.frames[0], {"head.weight": torch.ones(1)})
    setting.model.head.log = object()
    setting.calib.get_submodule("head").log = object()
    with pytest.raises(AnalysisError, match="'head.log' holds an object; it may hold tensors"):
        qa.auto_find_bad_case(setting.frames, cached_attrs=("head.log",))


def test_an_attribute_that_prepare_turned_into_a_constant_says_what_to_do(tmp_path: Path) -> None:
    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 3, 1)
            self.prev: Any = None

        def forward(self, x: Tensor) -> Tensor:
            x = self.conv(x) if self.prev is None else self.conv(x) + self.prev
            self.prev = x
            return x

    x = torch.rand(1, 3, 4, 4)
    model = Plain().eval()
    qa = QuantAnalysis(model, calibrated(model, x), "fake_quant", out_dir=str(tmp_path))
    with pytest.raises(AnalysisError, match=r"no attribute 'prev'.*register_buffer"):
        qa.auto_find_bad_case([x, x], cached_attrs=("prev",))


def test_lists_dicts_and_none_are_kept_as_values() -> None:
    model = nn.Module()
    model.log = {"frames": [torch.ones(2)], "count": 1, "last": None}
    own = model.log
    values = read_attributes(model, ("log",))
    with attributes_kept(model, ("log",)):
        model.log["frames"].append(torch.zeros(2))
        model.log["count"] = 2
        assert len(values["log"]["frames"]) == 1
        set_attributes(model, values)
        assert model.log["count"] == 1
        model.log["frames"][0].zero_()
    assert model.log is own
    assert own["count"] == 1
    assert torch.equal(own["frames"][0], torch.ones(2))
    assert torch.equal(values["log"]["frames"][0], torch.ones(2))


def test_an_hbir_module_has_no_attributes(setting: Setting) -> None:
    conv = nn.Conv2d(3, 2, 1)
    x = torch.rand(1, 3, 4, 4)
    calib = calibrated(conv, x)
    qa = QuantAnalysis(calib, hbdk4.export(calib, x), "export", out_dir=str(setting.folder / "bc"))
    with pytest.raises(AnalysisError, match="'memory.prev': an HBIR module has no attributes"):
        qa.set_bad_case(x, None, {"memory.prev": x})


class Counter(nn.Module):
    """Gives out its state itself, which it writes in place."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 2, 1)
        self.register_buffer("sum", torch.zeros(1, 2, 4, 4))

    def forward(self, x: Tensor) -> Tensor:
        self.sum.mul_(0.5).add_(self.conv(x))
        return self.sum


def test_an_output_that_is_the_state_itself_keeps_its_values(tmp_path: Path) -> None:
    model = Counter().eval()
    frames = [torch.rand(1, 3, 4, 4) for _ in range(3)]
    with torch.no_grad():
        calib = calibrated(model, *frames)
    for made in (model, calib):
        made.get_buffer("sum").fill_(0.25)
    expected = model.conv(frames[0]).detach() + 0.125
    qa = QuantAnalysis(model, calib, "fake_quant", out_dir=str(tmp_path))
    report = qa.auto_find_bad_case(frames, num_steps=1, cached_attrs=("sum",))
    qa.run()
    last = qa.compare_per_layer().to_pandas().iloc[-1]
    # float32 sums in another order
    assert last["base_model_max"] == pytest.approx(float(expected.max()), rel=1e-6)
    assert last["ATOL"] == report.values[""]["ATOL"][0]
    goal = {"": {"metric": "ATOL", "threshold": 0.0, "max_tuned_stubs": 3}}
    (table,) = qa.sensitivity(use_sensitivity_v2=True)[""]
    by_port = {(row[0], row[2]): row for row in table.rows}
    weight = by_port["conv", "weight"][table.columns.index("qint8_ATOL")]
    quantized = calib.get_submodule("conv").weight_fake_quant(model.conv.weight)
    alone = nn.functional.conv2d(frames[0], quantized - model.conv.weight).abs().max()
    assert weight == pytest.approx(alone.item(), rel=1e-3)  # float32 sums near 1, differences 1e-3
    tuned = qa.tune_bad_case(goal)[""][0].column("tuned_cumulative_ATOL")
    values = [value for value in tuned if value is not None]
    assert values
    assert all(value < report.values[""]["ATOL"][0] for value in values)
    assert float(model.sum.max()) == float(calib.get_buffer("sum").max()) == 0.25
