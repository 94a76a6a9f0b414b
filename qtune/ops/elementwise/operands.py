"""What the integer rules of element-wise operators share: operands as codes, deferred results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from qtune.dtype import QuantDType
from qtune.errors import ConvertError
from qtune.ops.elementwise.scaling import integers, single
from qtune.ops.kernel import (
    ConvertContext,
    FloatConst,
    FloatNode,
    FloatValue,
    Operand,
    Pending,
    PlainValue,
    QConst,
    QValue,
    Value,
)
from qtune.ops.operand_words import GIVE_SCALE, described
from qtune.ops.quant.codes import code_bounds, onnx_type, stored, tighten

Emit = Callable[[ConvertContext, float, QuantDType, dict[str, int]], Value]
"""``emit(ctx, scale, dtype, attrs)``: adds the integer node; ``attrs`` are its lo, hi and to."""


@dataclass(frozen=True, slots=True)
class Deferred(Pending):
    """An integer result that waits for its scale; ``low`` and ``high`` bound the real value."""

    node: Emit
    low: float | None = None
    high: float | None = None

    def emit(self, ctx: ConvertContext, scale: float, dtype: QuantDType) -> QValue:
        """Emit the integer node with this output scale."""
        lo, hi = code_bounds(self.low, self.high, scale, dtype)
        attrs = {"lo": lo, "hi": hi, "to": onnx_type(dtype)}
        return QValue(self.node(ctx, scale, dtype, attrs), dtype, scale, lo, hi)

    def clamp(self, ctx: ConvertContext, low: float | None, high: float | None) -> Pending:
        """Return the result with its real value clamped to [low, high]."""
        new_low, new_high = tighten(self.low, self.high, low, high)
        return replace(self, low=new_low, high=new_high)


def is_plain(node: FloatNode) -> bool:
    """Whether no operand is quantized: the node then stays what it is."""
    return not any(isinstance(o, QValue | QConst | Pending) for o in node.operands)


def copy_node(
    ctx: ConvertContext, node: FloatNode, *, domain: str = "", masks: bool = False
) -> Operand:
    """Emit the node unchanged, for operands without scale; ``masks``: its result is one, too."""
    values = [None if o is None else _value(ctx, o) for o in node.operands]
    result = ctx.add(node.op_type, values, node.attrs, domain=domain)
    floating = any(isinstance(operand, FloatValue) for operand in node.operands)
    return FloatValue(result) if floating and not masks else PlainValue(result)


def codes(ctx: ConvertContext, node: FloatNode, index: int) -> QValue:
    """Return an operand as codes of one scale; a quantized initializer becomes a constant."""
    operand = node.operands[index]
    if isinstance(operand, QValue):
        return operand
    if isinstance(operand, QConst) and np.size(operand.scale) == 1:
        return _constant_codes(ctx, operand)
    raise ConvertError(
        f"{node.name}: operand {index} of {node.op_type} is {described(operand)}, quantized codes "
        f"with one scale were expected. {GIVE_SCALE}, or keep {node.name} out of the quantized "
        "region"
    )


def scalar(node: FloatNode, index: int) -> float | None:
    """Return an operand that is one unquantized number, else ``None``.

    A constant of one element counts, unless its rank would show in the shape of the result.
    """
    operand = node.operands[index]
    if not isinstance(operand, FloatConst) or operand.data.size != 1:
        return None
    others = [len(s) for i, s in enumerate(node.input_shapes) if s is not None and i != index]
    if operand.data.ndim > max(others, default=operand.data.ndim):
        return None
    return float(operand.data.reshape(()))


def mask(ctx: ConvertContext, node: FloatNode, index: int) -> Value:
    """Return the value of an operand that has to be a mask."""
    operand = node.operands[index]
    if isinstance(operand, PlainValue):
        return operand.value
    if isinstance(operand, FloatConst) and operand.data.dtype == np.bool_:
        return ctx.constant(operand.data)
    raise ConvertError(
        f"{node.name}: operand {index} of {node.op_type} is {described(operand)}, a bool mask was "
        "expected"
    )


def _constant_codes(ctx: ConvertContext, operand: QConst) -> QValue:
    value = ctx.constant(stored(operand.codes, operand.dtype))
    low, high = int(operand.codes.min(initial=0)), int(operand.codes.max(initial=0))
    return QValue(value, operand.dtype, float(operand.scale.reshape(())), low, high)


def _value(ctx: ConvertContext, operand: Any) -> Value:
    return ctx.constant(operand.data) if isinstance(operand, FloatConst) else operand.value


def scaled_by(operand: QValue, factor: float) -> Deferred:
    """``operand * factor``: the factor goes into the one multiplier of a Requantize."""

    def emit(ctx: ConvertContext, scale: float, dtype: QuantDType, attrs: dict[str, int]) -> Value:
        shift = single(ctx, operand.scale * factor / scale)
        constants = integers(ctx, m=shift.m[0], n=shift.n)
        return ctx.add("Requantize", [operand.value, *constants], attrs, domain="qtune")

    bound = 0.0 if factor == 0 else None
    return Deferred(emit, bound, bound)
