"""Ranges, bad data and missing data: A01, A03, A07."""

from __future__ import annotations

import copy
import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qtune.errors import NonFiniteError, NotCalibratedError
from qtune.profiler import QuantAnalysis
from qtune.quantization import (
    FakeQuantize,
    FakeQuantState,
    QuantStub,
    get_qconfig,
    set_fake_quantize,
)
from qtune.quantization.hbdk4 import export, pre_export
from qtune.quantization.observer_v2 import (
    HistogramObserver,
    KLObserver,
    MinMaxObserver,
    MixObserver,
    MSEObserver,
    PercentileObserver,
)
from qtune.quantization.qconfig_setter import QconfigSetter
from qtune.utils.check_model import check_qat_model

from .steps import (
    STEP,
    calib,
    calibrated,
    distance,
    prep,
    quantized_module,
    ref_fq,
    run,
    s8,
    scale_of,
    scales,
    stubs,
    to_integer,
)

OBSERVERS = (
    *(MinMaxObserver, MSEObserver, PercentileObserver),
    *(MixObserver, KLObserver, HistogramObserver),
)
SMALLEST = 1.1920929e-07
"""The documented scale of data that are all zero (numerics.md section 1)."""
INF, NAN = math.inf, math.nan


@pytest.mark.parametrize("observer", OBSERVERS)
@pytest.mark.parametrize("dtype", ["qint8", "qint16"])
@pytest.mark.parametrize("axis", [-1, 0, 1])
def test_zero_data_give_the_smallest_scale_and_later_data_are_taken(
    observer: type, dtype: str, axis: int
) -> None:
    """A01 zero-range tensor: scale 0, division by zero, NaN."""
    fq = FakeQuantize(observer, dtype=dtype, ch_axis=axis)
    fq.state = FakeQuantState.CALIBRATION
    for _ in range(3):
        fq(torch.zeros(4, 8))
    assert torch.equal(fq.scale, torch.full_like(fq.scale, SMALLEST))
    fq.state = FakeQuantState.VALIDATION
    assert torch.equal(fq(torch.zeros(4, 8)), torch.zeros(4, 8))
    fq.state = FakeQuantState.CALIBRATION
    fq(torch.linspace(-2, 2, 32).reshape(4, 8))
    divisor = 127.5 if dtype == "qint8" else 32767.5
    assert bool((fq.scale > SMALLEST).all())
    assert bool((fq.scale <= 2 / divisor * 1.01).all())


@pytest.mark.parametrize("observer", OBSERVERS)
@pytest.mark.parametrize("value", [3.0, -3.0])
def test_constant_data_have_the_scale_of_their_value(observer: type, value: float) -> None:
    """A01 min == max is no empty range; mse may cut it where that quantizes better."""
    fq = FakeQuantize(observer)
    fq.state = FakeQuantState.CALIBRATION
    x = torch.full((4, 8), value)
    fq(x)
    assert 0 < float(fq.scale) <= s8(3.0)
    if observer is MinMaxObserver:
        assert float(fq.scale) == s8(3.0)
    fq.state = FakeQuantState.VALIDATION
    assert distance(fq(x), x) <= s8(3.0) / 2 * STEP + s8(3.0) * (value > 0)  # 127.5 rounds up, cut


class WithDeadChannel(nn.Module):
    """Channel 0 of the conv has weights and bias of zero, and relu leaves nothing of channel 1."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 4, 3), nn.Linear(4, 2)
        self.conv.weight.data[0], self.conv.bias.data[0] = 0.0, 0.0
        self.conv.bias.data[1] = -100.0

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(F.relu(self.conv(x)).mean((2, 3)))


@pytest.mark.parametrize("observer", OBSERVERS)
def test_dead_channels_and_zero_inputs_reach_the_integer_model(observer: type) -> None:
    """A01 through every stage."""
    setter = QconfigSetter(get_qconfig(observer=observer))
    x = torch.randn(2, 3, 8, 8)
    p = calibrated(WithDeadChannel(), x, setter)
    # float32 against float64; pytest's own 1e-6
    assert float(scales(p)["conv", "weight"][0]) == pytest.approx(SMALLEST)
    (y,) = to_integer(p, x)
    assert distance(y, run(p, x)) <= 0.02 * float(run(p, x).abs().max())  # a few int8 steps
    zeros = torch.zeros(2, 3, 8, 8)
    p = calibrated(nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.ReLU()), zeros, setter)
    (y,) = to_integer(p, zeros)
    assert torch.equal(y, torch.zeros(2, 4, 6, 6))


ODD = torch.tensor([0.3, INF, -INF, NAN, 9.0])
ODD_QUANTIZED = torch.tensor([0.3, 6.35, -6.4, NAN, 6.35])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.half])
@pytest.mark.parametrize("axis", [-1, 0, 1])
def test_fake_quantize_saturates_infinities_and_passes_nan(dtype: torch.dtype, axis: int) -> None:
    """A03 +inf and NaN must not come out as the lowest value."""
    x = ODD if axis == -1 else ODD[:, None].expand(5, 2) if axis == 1 else ODD.expand(2, 5)
    expected = ODD_QUANTIZED.reshape(-1, 1) if axis == 1 else ODD_QUANTIZED
    fq = FakeQuantize(MinMaxObserver, ch_axis=axis, channel_len=None if axis == -1 else 2)
    fq.set_qparams(0.05)
    fq.state = FakeQuantState.VALIDATION
    y = fq(x.to(dtype))
    assert y.dtype == dtype
    # 0.05 is no float32: each value is a code times float32(0.05), rounded once to the dtype
    assert torch.allclose(
        y.float(), expected.expand_as(x).to(dtype).float(), rtol=1e-6, atol=0, equal_nan=True
    )


class Stub(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.quant = QuantStub()

    def forward(self, x: Tensor) -> Tensor:
        return self.quant(x)


def test_the_integer_model_saturates_infinities_and_refuses_nan() -> None:
    """A03 integer quantize raises and names the operator."""
    x = torch.linspace(-6.4, 6.35, 5)
    p = prep(Stub(), x)
    stubs(p)["quant", "output"].set_qparams(0.05)
    set_fake_quantize(p, FakeQuantState.VALIDATION)
    odd = torch.tensor([0.3, INF, -INF, 0.0, 9.0])
    (y,) = to_integer(p, x, odd)
    # codes times a float32 scale against decimal literals
    assert torch.allclose(y, torch.tensor([0.3, 6.35, -6.4, 0.0, 6.35]), rtol=1e-6, atol=0)
    module = quantized_module(p, x)
    for mode in ("fast", "reference"):
        with pytest.raises(NonFiniteError, match=r"quant.*NaN"):
            module[0].run({module[0].inputs[0].name: ODD}, mode=mode)


@pytest.mark.parametrize("bad", [INF, -INF, NAN])
def test_the_advice_of_a_layer_says_inf_or_nan(bad: float, tmp_path: Path) -> None:
    """A03 per-layer report."""
    x = torch.randn(2, 3, 8, 8)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 1)).eval()
    p = calibrated(net, x)
    broken = x.clone()
    broken[0, 0, 0, 0] = bad
    analysis = QuantAnalysis(net, p, "fake_quant", out_dir=str(tmp_path))
    analysis.set_bad_case(broken)
    analysis.run()
    table = analysis.compare_per_layer().to_pandas()
    assert "inf or NaN" in table.loc["_input_0_quant", "advice"]


class Detector(nn.Module):
    """A backbone, and a head for boxes that may be none."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn, self.roi = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 2)

    def forward(self, x: Tensor, boxes: Tensor) -> tuple[Tensor, Tensor]:
        return torch.sigmoid(F.relu(self.bn(self.conv(x)))), torch.tanh(self.roi(boxes))


BACKBONE = ("_input_0_quant", "conv weight", "_generated_relu_0", "_generated_sigmoid_0")
HEAD = ("_input_1_quant", "roi weight", "roi", "_generated_tanh_0")


def listed(message: str) -> list[str]:
    first, *others = message.split("\n")
    if others:  # the first line has the first few only
        return [line.strip() for line in others]
    return first.removeprefix("nothing is calibrated for: ").split(". ")[0].split(", ")


def test_calibrating_the_float_model_by_mistake_is_an_error() -> None:
    """A07 every fake-quantize that saw nothing is listed by name; no silent scale of 1."""
    net, data = Detector().eval(), (torch.randn(2, 3, 8, 8), torch.randn(5, 4))
    p = prep(copy.deepcopy(net), data)
    run(net, data)
    set_fake_quantize(p, FakeQuantState.VALIDATION)
    assert sorted(check_qat_model(p, data).unobserved) == sorted((*BACKBONE, *HEAD))
    for step in (lambda: run(p, data), lambda: pre_export(p), lambda: export(p, data)):
        with pytest.raises(NotCalibratedError) as caught:
            step()
        assert sorted(listed(str(caught.value))) == sorted((*BACKBONE, *HEAD))
        assert "through the prepared model itself" in str(caught.value)
    calib(p, [data])
    assert check_qat_model(p, data).unobserved == ()
    to_integer(p, data)


def test_a_branch_that_never_saw_data_is_listed_alone() -> None:
    """A07 calibration without any box: the head has no scale, the backbone has."""
    data = (torch.randn(2, 3, 8, 8), torch.randn(5, 4))
    p = prep(Detector(), data)
    calib(p, [(data[0], data[1][:0])] * 2)
    missing = {"_input_1_quant", "roi", "_generated_tanh_0"}  # weights are data at any time
    assert set(check_qat_model(p, data).unobserved) == missing
    for step in (lambda: run(p, data), lambda: export(p, data)):
        with pytest.raises(NotCalibratedError) as caught:
            step()
        assert set(listed(str(caught.value))) == missing


def test_only_the_calibrated_part_has_scales() -> None:
    """A07 states set on a sub-module only."""
    data = (torch.randn(2, 3, 8, 8), torch.randn(5, 4))
    p = prep(Detector(), data)
    set_fake_quantize(p, FakeQuantState.VALIDATION)
    set_fake_quantize(p.get_submodule("_input_0_quant"), FakeQuantState.CALIBRATION)
    with pytest.raises(NotCalibratedError) as caught:
        run(p, data)
    assert "_input_0_quant" not in listed(str(caught.value))
    assert scale_of(p, "_input_0_quant") == s8(float(data[0].abs().max()))
    x = data[0]
    set_fake_quantize(p, FakeQuantState.VALIDATION)
    stub = stubs(p)["_input_0_quant", "output"]
    assert torch.equal(stub(x), ref_fq(x, stub.scale))
