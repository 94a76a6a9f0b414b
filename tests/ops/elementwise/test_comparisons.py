"""Comparisons: bool, no scale, operands over a common shift (numerics.md section 3)."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from qtune.dtype import QuantDType, qint8, qint16
from qtune.ops.registry import spec

from .rig import Case, Operand, randn

OPS = ("gt", "lt", "ge", "le", "eq", "ne")
X = randn(2, 3, 5, 4)
Y = randn(2, 3, 5, 4, scale=3.0, seed=1)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtypes", [(qint8, qint8), (qint16, qint16), (qint8, qint16)])
def test_comparison_of_tensors_is_that_of_the_common_integers(
    op: str, dtypes: tuple[QuantDType, QuantDType]
) -> None:
    case = Case(op, [Operand(X, dtypes[0]), Operand(Y[:, :1], dtypes[1])])
    got = case.run_integer()
    # The multipliers have 15 bits: pairs closer than 2**-14 of the larger range may change sides.
    a, b = (o.grid for o in case.operands)
    far = (a - b).abs() > 3 * float(Y.abs().max()) * 2.0**-14
    assert torch.equal(got[far], case.real[far])


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", [qint8, qint16])
def test_same_scale_compares_exactly(op: str, dtype: QuantDType) -> None:
    shuffled = X.flatten()[torch.randperm(X.numel(), generator=torch.Generator().manual_seed(0))]
    case = Case(op, [Operand(X, dtype), Operand(shuffled.view_as(X), dtype)])
    assert case.check() == 0


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", [qint8, qint16])
def test_number_on_the_grid_compares_exactly(op: str, dtype: QuantDType) -> None:
    x = torch.arange(-100, 101) * 0.01
    operand = Operand(x, dtype)
    for code in (-100, -3, 0, 7, 77):
        on_grid = float(np.float32(code) * np.float32(operand.scale))
        between = float((np.float32(code) + np.float32(0.4)) * np.float32(operand.scale))
        for number in (on_grid, between):
            assert Case(op, [operand, Operand(number, None)]).check() == 0


@pytest.mark.parametrize("number", [1e30, -1e30, float("inf")])
def test_number_far_outside_the_range(number: float) -> None:
    for op in OPS:
        assert Case(op, [Operand(X), Operand(number, None)]).check() == 0


def test_number_first_is_mirrored() -> None:
    """The graph may hold ``0.5 > x``; torch turns it round, other files don't."""
    from qtune.ops.kernel import FloatConst, FloatNode
    from qtune.ops.registry import kernel
    from tests.ops.gemm.eager import EagerContext, quantized

    x = quantized(X, 0.01, qint8)
    convert = getattr(kernel("", "Greater"), "convert")  # noqa: B009
    node = FloatNode("Greater", {}, (FloatConst(np.float32(0.5)), x), "op")

    class Bools(EagerContext):
        def add(self, op_type, inputs, attrs=None, *, domain="", outputs=1, suffix=""):  # type: ignore[no-untyped-def]
            return op_type

    assert convert(Bools(), node).value == "QLess"


def test_comparisons_have_no_scale() -> None:
    assert {spec(op).rule.value for op in OPS} == {"no scale"}
