"""int16 look-up tables in a model: A23."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import qtune
from qtune.quantization import FakeQuantState, QuantStub, set_fake_quantize

from .steps import INT16, calib, prep, run, stubs, to_integer

STEP_IN = 8 / 32768
CODES = torch.arange(-32768, 32768, dtype=torch.float64)


class Function(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.quant, self.name = QuantStub(), name

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = getattr(torch, self.name)(self.quant(x))
        return result


def codes_of(name: str, x: Tensor, out_scale: float) -> Tensor:
    """The integer model's result for ``x``, as codes; all three oracles agree on it."""
    x = x.float().reshape(1, -1)
    p = prep(Function(name), x, INT16)
    calib(p, [x])
    for (owner, kind), quantizer in stubs(p).items():
        if kind == "output":
            quantizer.set_qparams(STEP_IN if owner == "quant" else out_scale)
    set_fake_quantize(p, FakeQuantState.VALIDATION)
    run(p, x)
    (y,) = to_integer(p, x)
    return (y.double() / out_scale).round().flatten()


def exact(function: Callable[[Tensor], Tensor], codes: Tensor, out_scale: float) -> Tensor:
    steps = torch.floor(function(codes * STEP_IN) / out_scale + 0.5)
    return steps.clamp(qtune.qint16.qmin, qtune.qint16.qmax)


@pytest.mark.parametrize("steps", [2000, 40000])
def test_a_small_output_range_does_not_empty_the_table(steps: int) -> None:
    """A23: a negative shift zeroed sigmoid; 1 / 40000 saturates."""
    y = codes_of("sigmoid", CODES * STEP_IN, 1 / steps)
    assert float((y - exact(torch.sigmoid, CODES, 1 / steps)).abs().max()) <= 1
    assert bool((y.diff() >= 0).all())
    assert abs(float(y[-1]) - min(round(steps * 0.99966), 32767)) <= 1  # sigmoid(8) = 0.99966
    assert len(y.unique()) > 1900


@pytest.mark.parametrize(("name", "out_scale"), [("tanh", 1 / 2000), ("exp", 2981 / 32767.5)])
def test_other_functions_are_within_a_step(name: str, out_scale: float) -> None:
    """A23"""
    y = codes_of(name, CODES * STEP_IN, out_scale)
    assert float((y - exact(getattr(torch, name), CODES, out_scale)).abs().max()) <= 1
    assert bool((y.diff() >= 0).all())


def test_reciprocal_away_from_zero_is_within_five_steps() -> None:
    """A23"""
    codes = CODES[CODES >= 1024]  # from 0.25 on
    y = codes_of("reciprocal", codes * STEP_IN, 4 / 32767.5)
    assert float((y - exact(torch.reciprocal, codes, 4 / 32767.5)).abs().max()) <= 5
