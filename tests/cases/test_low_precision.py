"""Half, bfloat16, double and autocast models: A20."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from qtune.errors import ExportError
from qtune.quantization import (
    FakeQuantize,
    FakeQuantState,
    QuantStub,
    prepare,
    set_fake_quantize,
)
from qtune.quantization.hbdk4 import export

from .steps import INT8, calib, calibrated, distance, prep, ref_fq, run, s8, scale_of, scales

DTYPES = [torch.half, torch.bfloat16, torch.double]
ROUNDING = {torch.half: 2**-10, torch.bfloat16: 2**-7, torch.double: 2**-23}
"""Relative distance of neighbouring numbers; for double that of float32, which holds the scales."""


def network() -> nn.Module:
    torch.manual_seed(0)
    first = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3), nn.Sigmoid()]
    return nn.Sequential(*first, nn.Flatten(), nn.LayerNorm(64), nn.Linear(64, 5), nn.Softmax(1))


X = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def test_a_half_tensor_whose_range_overflows_half_has_its_float32_scale() -> None:
    """A20: half(59000) is 59008, and max - min would be infinite."""
    x = torch.tensor([59000.0, -59000.0, 1.0], dtype=torch.half)
    model = nn.Sequential(QuantStub())
    p = calibrated(model.to(torch.half), x, INT8)
    scale = torch.tensor(scale_of(p, "0"))
    assert scale == s8(59008.0)
    # the case states four decimals
    assert float(scale) == pytest.approx(462.8078, abs=1e-4)
    y = run(p, x)
    assert y.dtype == torch.half
    assert torch.equal(y, ref_fq(x.float(), scale).half())
    assert y.tolist() == [58784.0, -58784.0, 0.0]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_model_of_another_dtype_is_calibrated_and_keeps_it(dtype: torch.dtype) -> None:
    """A20: scales stay float32, results keep the dtype."""
    model, x = network().eval().to(dtype), X.to(dtype)
    p = prep(model, x, INT8)
    calib(p, [x])
    assert {scale.dtype for scale in scales(p).values()} == {torch.float32}
    y = run(p, x)
    assert y.dtype == dtype
    # int8 rounding of the input and of five results moves these probabilities by at most 0.03
    assert distance(y, run(model, x)) < 0.03 + 4 * ROUNDING[dtype]
    with pytest.raises(ExportError, match=rf"{dtype}.*model\.float\(\)"):
        export(p, x)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_calibrated_model_can_change_its_dtype(dtype: torch.dtype) -> None:
    """A20: the scales do not move with it."""
    p = calibrated(network().eval(), X, INT8)
    before = scales(p)
    y = run(p.to(dtype), X.to(dtype))
    assert y.dtype == dtype
    assert all(torch.equal(scale, before[key]) for key, scale in scales(p).items())


def test_training_under_autocast_has_finite_gradients() -> None:
    """A20: every parameter gets one."""
    p = prepare(network(), X).train()
    set_fake_quantize(p, FakeQuantState.QAT)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y: Tensor = p(X)
    y.float().square().sum().backward()  # the sum of probabilities itself has no gradient
    for name, parameter in p.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
    assert any(float(q.grad.abs().max()) > 0 for q in p.parameters())  # type: ignore[union-attr]
    quantizers = [m for m in p.modules() if isinstance(m, FakeQuantize)]
    assert {q.scale.dtype for q in quantizers} == {torch.float32}


def test_autocast_around_a_calibrated_model_is_as_near_as_bfloat16() -> None:
    """A20: the GEMMs run in bfloat16 there, the grids are the same."""
    p = calibrated(network().eval(), X, INT8)
    before = copy.deepcopy(scales(p))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = run(p, X)
    # two GEMMs with 8 bits of mantissa, each result up to a step further on its int8 grid
    assert distance(y, run(p, X)) < 0.03
    assert all(torch.equal(scale, before[key]) for key, scale in scales(p).items())
