"""div: a reciprocal table of the divisor and a product, or a division by a number."""

from __future__ import annotations

import operator
from typing import Any

import torch

from qtune.dtype import qint16
from qtune.ops.activation.dividing import number_of, refuse_integers
from qtune.ops.elementwise import limits
from qtune.ops.elementwise.binding import (
    binary,
    operand_value,
    output_elements,
    sample_binary,
)
from qtune.ops.kernel import Builder, LowerCall
from qtune.ops.registry import register
from qtune.ops.spec import (
    Bound,
    DecomposeBuilder,
    FunctionTarget,
    MethodTarget,
    OpSpec,
    Rule,
)

_FORMS = {"floor": "DivFloor", "trunc": "DivTrunc"}
_ROUNDED = {"floor": "floor_divide", "trunc": "trunc_divide"}


def _bind(input: Any, other: Any, *, rounding_mode: Any = None) -> Bound:
    if rounding_mode is None:
        return Bound((input, other))
    operator_name = f"div with rounding_mode={rounding_mode!r}"
    return Bound((input, number_of(operator_name, input, other)), {"rounding_mode": rounding_mode})


def _bind_reflected(input: Any, other: Any) -> Bound:
    """``other / input``, which torch computes as ``reciprocal(input) * other``."""
    return Bound((other, input), {"by_reciprocal": True})


def _div(
    input: Any, other: Any, *, by_reciprocal: bool = False, rounding_mode: str | None = None
) -> torch.Tensor:
    if by_reciprocal:
        return torch.mul(torch.reciprocal(other), input)
    return torch.div(input, other, rounding_mode=rounding_mode)


def _lower(b: Builder, call: LowerCall) -> Any:
    mode = call.attrs.get("rounding_mode")
    if mode is not None:
        refuse_integers(call, f"div with rounding_mode={mode!r}")
        divisor = {"divisor": float(call.operands[1])}  # type: ignore[arg-type]
        return b.add(_FORMS[mode], [call.operands[0]], divisor, domain="qtune")
    values = [operand_value(b, call, 0), operand_value(b, call, 1)]
    if call.attrs.get("by_reciprocal"):
        return b.add("Mul", [b.add("Reciprocal", [values[1]]), values[0]])
    return b.add("Div", values)


def _decompose(builder: DecomposeBuilder, bound: Bound) -> Any:
    numerator, divisor = bound.tensors
    mode = bound.attrs.get("rounding_mode")
    if mode is not None:
        return builder.call(_ROUNDED[mode], (numerator,), {"divisor": divisor}, part=_ROUNDED[mode])
    if not builder.is_tensor(divisor):
        return builder.call("div_scalar", (numerator,), {"divisor": divisor}, part="div")
    if not builder.is_tensor(numerator) and numerator == 1:
        return builder.call("reciprocal", (divisor,), part="reciprocal")
    inverse = builder.call("reciprocal", (divisor,), part="reciprocal", forced_dtype=qint16)
    return builder.call("mul", (numerator, inverse), part="mul")


register(
    OpSpec(
        name="div",
        family="elementwise",
        rule=Rule.DECOMPOSED,
        roles=("input", "other"),
        targets=(
            FunctionTarget(torch.div, _bind),
            FunctionTarget(torch.divide, _bind),
            FunctionTarget(torch.true_divide, binary),
            FunctionTarget(operator.truediv, binary),
            FunctionTarget(operator.itruediv, binary),
            MethodTarget("div", _bind),
            MethodTarget("div_", _bind),
            MethodTarget("divide", _bind),
            MethodTarget("divide_", _bind),
            MethodTarget("true_divide", binary),
            MethodTarget("true_divide_", binary),
            MethodTarget("__truediv__", binary),
            MethodTarget("__div__", binary),
            MethodTarget("__rtruediv__", _bind_reflected),
            MethodTarget("__rdiv__", _bind_reflected),
            MethodTarget("__itruediv__", binary),
            MethodTarget("__idiv__", binary),
        ),
        float_kernel=_div,
        lower=_lower,
        decompose=_decompose,
        march=limits.NOT_BERNOULLI,
        flops=output_elements,
        sample=sample_binary,
        doc="input / other: reciprocal table of other (qint16) and mul; a number: div_scalar",
    )
)
