"""Operators that put operands of several scales into one tensor (numerics.md section 3, "cat")."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from qtune.arith.quantize import quantize
from qtune.arith.requantize import requantize
from qtune.arith.rounding import Int64Array
from qtune.dtype import QuantDType
from qtune.errors import ConvertError
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
from qtune.ops.movement.moving import dequantized, one_scale
from qtune.ops.quant.codes import stored
from qtune.ops.quant.precision import multiplier

Emit = Callable[[ConvertContext, list[Value]], Value]


@dataclass(frozen=True, slots=True)
class Merge(Pending):
    """A merging operator that waits for its scale; ``build`` emits it on values of one scale."""

    node: FloatNode
    parts: tuple[Operand, ...]
    build: Emit

    def emit(self, ctx: ConvertContext, scale: float, dtype: QuantDType) -> QValue:
        """Rescale every part to the result's scale, then merge."""
        codes = [_codes(ctx, self.node, part, scale, dtype) for part in self.parts]
        low = 0 if all(_never_negative(part) for part in self.parts) else None
        return QValue(self.build(ctx, codes), dtype, scale, code_min=low)

    def dequantize(self, ctx: ConvertContext) -> FloatValue:
        """Merge in float, for a result that no FakeQuant follows."""
        floats = [_real(ctx, self.node, part) for part in self.parts]
        return FloatValue(self.build(ctx, floats))


def merge(ctx: ConvertContext, node: FloatNode, parts: Sequence[Any], build: Emit) -> Operand:
    """Merge operands: codes wait for a scale, masks and floats are merged as they are."""
    operands = tuple(_present(node, part) for part in parts)
    if any(isinstance(part, PlainValue) for part in operands):
        return PlainValue(build(ctx, [_plain(ctx, node, part) for part in operands]))
    if any(isinstance(part, QValue | QConst | Pending) for part in operands):
        return Merge(node, operands, build)
    return FloatValue(build(ctx, [_real(ctx, node, part) for part in operands]))


def _present(node: FloatNode, part: Operand | None) -> Operand:
    if part is None:
        raise ConvertError(f"{node.name}: {node.op_type} lacks an operand; export the model again")
    return part


def _never_negative(part: Operand) -> bool:
    return isinstance(part, QValue) and part.code_min is not None and part.code_min >= 0


def _codes(
    ctx: ConvertContext, node: FloatNode, part: Operand, scale: float, dtype: QuantDType
) -> Value:
    if isinstance(part, QConst):
        return ctx.constant(stored(_rescaled(ctx, node, part, scale, dtype), dtype), "codes")
    if isinstance(part, Pending):
        part = part.emit(ctx, scale, dtype)
    if isinstance(part, QValue):
        return ctx.requantize(part, scale, dtype).value
    if isinstance(part, FloatConst):
        return ctx.constant(stored(quantize(part.data, scale, dtype), dtype), "codes")
    if isinstance(part, FloatValue):
        return ctx.quantize(part.value, scale, dtype).value
    raise ConvertError(
        f"{node.name}: {node.op_type} can't put {type(part).__name__} among quantized numbers. "
        "Keep masks and indices out of it."
    )


def _rescaled(
    ctx: ConvertContext, node: FloatNode, data: QConst, scale: float, dtype: QuantDType
) -> Int64Array:
    """Constant codes on another scale, by the rule of a Requantize."""
    one_scale(node, data)
    own = np.float32(np.ravel(data.scale)[0])
    if data.dtype == dtype and own == np.float32(scale):
        return data.codes
    m, n = multiplier(ctx, float(own) / float(np.float32(scale)))
    return requantize(data.codes, m, n, dtype)


def _real(ctx: ConvertContext, node: FloatNode, part: Operand) -> Value:
    if isinstance(part, Pending):
        return dequantized(ctx, node, part).value
    if isinstance(part, QConst | FloatConst):
        return ctx.constant(np.asarray(part.data, dtype=np.float32))
    if isinstance(part, QValue):
        return ctx.dequantize(part).value
    return part.value


def _plain(ctx: ConvertContext, node: FloatNode, part: Operand) -> Value:
    if isinstance(part, PlainValue):
        return part.value
    if isinstance(part, FloatConst):
        return ctx.constant(part.data)
    raise ConvertError(
        f"{node.name}: {node.op_type} got masks or integers together with "
        f"{type(part).__name__}. Convert them to one dtype before."
    )
