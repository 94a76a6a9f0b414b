"""relu, relu6, clamp: the codes are clamped, the scale stays (numerics.md section 3)."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from qtune.dtype import QuantDType, qint8, qint16
from qtune.errors import ConvertError
from qtune.ops.elementwise.operands import Deferred
from qtune.ops.kernel import FloatNode, FloatValue
from qtune.ops.registry import kernel
from tests.ops.elementwise.rig import Case, Operand, randn
from tests.ops.gemm.eager import EagerContext

X = randn(2, 3, 6, 7, scale=4.0)


@pytest.mark.parametrize("dtype", [qint8, qint16])
@pytest.mark.parametrize("last", [False, True])
def test_relu_is_exact(dtype: QuantDType, last: bool) -> None:
    x = X.contiguous(memory_format=torch.channels_last) if last else X
    case = Case("relu", [Operand(x, dtype)])
    assert case.check() == 0
    assert case.op_types == ["QClip"]


@pytest.mark.parametrize("dtype", [qint8, qint16])
@pytest.mark.parametrize(
    ("op", "attrs"),
    [
        ("relu6", {}),
        ("clamp_scalar", {"min": -1.0, "max": 1.0}),
        ("clamp_scalar", {"min": None, "max": 0.3}),
        ("clamp_scalar", {"min": -0.2, "max": None}),
        ("clamp_scalar", {"min": -1e9, "max": 1e9}),
        ("clamp_scalar", {"min": 0.5, "max": -0.5}),
    ],
)
def test_clamp_is_exact_but_for_the_bounds_own_rounding(
    dtype: QuantDType, op: str, attrs: dict[str, float | None]
) -> None:
    case = Case(op, [Operand(X, dtype)], attrs)
    assert case.check() <= 0.501  # half a step where the bound is no multiple of the scale


def test_bounds_are_codes_rounded_half_up() -> None:
    """A21: floor(bound / s + 0.5)."""
    operand = Operand(torch.tensor([-63.75, 63.75]))  # scale 0.5
    case = Case("clamp_scalar", [operand], {"min": -2.75, "max": 2.75})
    assert case.run_integer().tolist() == [-2.5, 3.0]  # -5.5 -> -5, 5.5 -> 6


def test_clamp_joins_the_operator_before_it() -> None:
    ctx = EagerContext()
    pending = Deferred(lambda *_: "value")
    node = FloatNode("Relu", {}, (pending,), "op")
    convert = getattr(kernel("", "Relu"), "convert")  # noqa: B009
    fused = convert(ctx, node)
    assert isinstance(fused, Deferred)
    assert (fused.low, fused.high) == (0.0, None)
    y = fused.emit(ctx, 0.1, qint8)
    assert (y.code_min, y.code_max, y.value) == (0, 127, "value")


def test_tensor_bounds_are_refused_with_a_remedy() -> None:
    convert = getattr(kernel("", "Clip"), "convert")  # noqa: B009
    node = FloatNode("Clip", {}, (FloatValue("x"), FloatValue("low")), "op")
    with pytest.raises(ConvertError, match="maximum and minimum"):
        convert(EagerContext(), node)


def test_empty_and_single_elements() -> None:
    single = torch.tensor([[-3.0]])
    assert Case("relu", [Operand(single)]).check() == 0
    operand = Operand(X[:0])
    object.__setattr__(operand, "scale", np.float32(0.1))
    assert Case("relu", [operand]).run_integer().shape == (0, 3, 6, 7)
