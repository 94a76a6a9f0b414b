"""Advice: a planted fault of each kind is named at its operator, a clean model gets none."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from qtune import qint8
from qtune.analysis.advice import Judged, advise, clipped_share
from qtune.capture.inputs import as_inputs
from qtune.profiler.observe import observe
from qtune.profiler.pair_sums import extremes
from qtune.profiler.record import OpRecord
from qtune.quantization import QconfigSetter, get_qconfig, hbdk4
from qtune.quantization.qconfig_setter import ModuleNameTemplate

from .nets import Block, calibrated
from .planted import ResNet20
from .test_op_error import compared


def advice_of(baseline: Any, analysed: Any, x: Any) -> dict[str, str]:
    """Operator -> its advice, where there is some."""
    found = compared(baseline, analysed, x)
    return {n: r["advice"] for n, r in zip(found.names, found.rows, strict=True) if r["advice"]}


def trained(net: nn.Module, *shape: int) -> nn.Module:
    """Batch norms that know the statistics of what they get."""
    net.train()
    with torch.no_grad():
        for _ in range(4):
            net(torch.randn(*shape))
    return net.eval()


def digits() -> nn.Module:
    """A small classifier of images."""
    layers: list[nn.Module] = []
    for inputs, outputs in ((1, 8), (8, 16)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()]
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64, 10))


def mixed() -> nn.Module:
    """Tables, a decomposed norm, a softmax."""
    return nn.Sequential(
        *(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU6(), nn.Conv2d(16, 16, 3, groups=16)),
        *(nn.SiLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 32), nn.GELU()),
        *(nn.LayerNorm(32), nn.Linear(32, 10), nn.Softmax(-1)),
    )


CLEAN: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "digits": (digits, (8, 1, 8, 8)),
    "block": (Block, (4, 3, 8, 8)),
    "mixed": (mixed, (8, 3, 12, 12)),
    "resnet": (ResNet20, (8, 3, 32, 32)),
}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", CLEAN)
def test_a_clean_model_gets_no_advice_on_other_data_than_it_was_calibrated_with(
    name: str, seed: int
) -> None:
    torch.manual_seed(seed)
    make, shape = CLEAN[name]
    net = trained(make(), *shape)
    model = calibrated(net, *(torch.randn(shape) for _ in range(6)))
    assert advice_of(net, model, torch.randn(shape)) == {}


def test_huge_ranges_are_named_with_the_documented_words() -> None:
    """A38."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Conv2d(4, 2, 1, bias=False)).eval()
    x = torch.rand(1, 3, 8, 8)
    with torch.no_grad():
        net[1].weight.mul_(8000 / net(x).abs().max())
    setter = QconfigSetter(get_qconfig(), [ModuleNameTemplate({"": qint8, "1": qint8})])
    found = compared(net, calibrated(net, x, setter=setter), x)
    row = dict(zip(found.names, found.rows, strict=True))["1"]
    assert row["qscale"] == pytest.approx(62.745, abs=1e-3)  # 8000 / 127.5, as the case prints it
    span = row["base_model_max"] - row["base_model_min"]
    first, *others = row["advice"].split("; ")
    assert first == f"Total data range {span:.6g} maybe too large for quantization."
    assert [text[:35] for text in others] == ["The output is qint8, not high preci"]


def test_a_scale_that_does_not_cover_the_range_is_named_where_it_is() -> None:
    torch.manual_seed(0)
    net = trained(digits(), 8, 1, 8, 8)
    x = torch.randn(8, 1, 8, 8)
    model = calibrated(net, x)
    quantizer: Any = model.get_submodule("2").activation_post_process
    quantizer.set_qparams(quantizer.scale / 4)
    found = advice_of(net, model, x)
    assert set(found) == {"2"}  # not at the pool, which keeps the scale, nor at what follows
    assert found["2"].startswith("Current scale does not cover the data range: clamp error on ")


@pytest.mark.parametrize(
    ("values", "is_clamped"),
    [
        ([1.0] * 99 + [1.4], False),  # little beyond the range, and few
        ([1.4] * 100, True),  # little beyond, but all: they lose 8 % of the energy
        ([1.0] * 9999 + [1.6], True),  # far beyond, but one of many
    ],
)
def test_clamping_is_named_for_far_values_and_for_many(
    values: list[float], is_clamped: bool
) -> None:
    """Each rule alone: 1.5 times the range, and 1 % of the energy. The range is 1."""
    value = torch.tensor(values)
    record = OpRecord("op", "Type", value, 1 / 127.5, "qint8")
    ends = extremes(value)
    judged = Judged(record, record, (ends, ends))
    advice = advise(judged, fixed_scale=False, is_output=False)
    assert ("clamp error" in advice) == is_clamped


def test_rounding_is_told_from_clamping() -> None:
    torch.manual_seed(0)
    net = trained(digits(), 8, 1, 8, 8)
    x = torch.randn(8, 1, 8, 8)
    model = calibrated(net, x)
    quantizer: Any = model.get_submodule("6").activation_post_process
    quantizer.set_qparams(quantizer.scale * 64)
    found = advice_of(net, model, x)
    assert set(found) == {"6"}
    assert found["6"].startswith("Rounding error: ")
    assert "Raise it from qint8 to qint16" in found["6"]


def test_fixed_scales_are_named_with_their_value() -> None:
    net, x = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)).eval(), torch.rand(3, 4) - 0.5
    setting = {"": qint8, "0": {"dtype": qint8, "threshold": 2.0}}
    setter = QconfigSetter(get_qconfig(), [ModuleNameTemplate(setting)])
    assert advice_of(net, calibrated(net, x, setter=setter), x)["0"].startswith(
        "Set fixed scale 0.015625"
    )


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_inf_and_nan_are_named_where_they_begin(value: float) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(4, 4)
            self.scale = nn.Parameter(torch.ones(4))
            self.last = nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(torch.sigmoid(self.first(x)) * self.scale)

    net, x = Net().eval(), torch.rand(3, 4)
    model = calibrated(net, x)
    with torch.no_grad():
        net.first.bias[0] = value
        model.first.bias[0] = value
    found = advice_of(net, model, x)
    sides = "baseline and analysed model" if math.isnan(value) else "baseline"
    assert found["first"].startswith(f"The result holds inf or NaN ({sides})")
    assert not any("inf or NaN" in a for name, a in found.items() if name != "first")


def test_nan_does_not_hide_how_little_is_clipped() -> None:
    torch.manual_seed(0)
    net = trained(digits(), 8, 1, 8, 8)
    model = calibrated(net, torch.randn(8, 1, 8, 8))
    x = 1.1 * torch.randn(8, 1, 8, 8)
    assert advice_of(net, model, x) == {}
    x[0, 0, 0, 0] = math.nan
    assert list(advice_of(net, model, x)) == ["_input_0_quant"]


class Masked(nn.Module):
    """Two inputs and a constant, joined behind an operator."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.register_buffer("mask", torch.zeros(4))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.cat([torch.sigmoid(self.fc(x)) + self.mask, y], 1) * 2


def test_inf_in_data_is_named_at_the_operator_that_takes_it() -> None:
    """At every one: the first input, a later one, and a constant behind other operators."""
    net, x = Masked().eval(), (torch.rand(3, 4), torch.rand(3, 4))
    model = calibrated(net, x)
    places = {0: "_input_0_quant", 1: "_input_1_quant"}
    for place, name in places.items():
        bad = tuple(t / (0 if i == place else 1) for i, t in enumerate(x))
        assert [n for n, a in advice_of(net, model, bad).items() if "inf or NaN" in a] == [name]
    net.mask[0] = model.mask[0] = -math.inf  # type: ignore[index,operator]
    named = [n for n, a in advice_of(net, model, x).items() if "inf or NaN" in a]
    assert named == ["_generated_add_0"]


def test_records_tell_the_operands_that_no_operator_computed() -> None:
    x = torch.rand(3, 4), torch.rand(3, 4)
    model = calibrated(Masked(), x)
    for side in (model, hbdk4.export(model, x)):
        seen = observe(side, as_inputs(x), keep_inputs=True)
        taken = {name: record.data for name, record in seen.records.items()}
        assert [taken[f"_input_{i}_quant"] for i in (0, 1)] == [(0,), (0,)]
        assert taken["_generated_cat_0"] == taken["_generated_mul_0"] == ()


def test_modules_in_hbir_give_advice_at_the_owner_of_a_scale() -> None:
    torch.manual_seed(0)
    net = trained(digits(), 8, 1, 8, 8)
    x = torch.randn(8, 1, 8, 8)
    qat = hbdk4.export(calibrated(net, x), x)
    assert advice_of(qat, hbdk4.convert(qat, "nash-e"), x) == {}
    assert set(advice_of(qat, hbdk4.convert(qat, "nash-e"), 8 * x)) <= {"_input_0_quant"}


def test_clipped_values_are_counted_by_the_rule_of_in_range() -> None:
    value = torch.tensor([127.49, 127.51, -128.49, -128.51, 0.0])
    record = OpRecord("op", "Type", value, 1.0, "qint8")
    # the share is a mean in float32
    assert clipped_share(value, record) == pytest.approx(2 / 5)
