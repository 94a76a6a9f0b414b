"""Masks that a file computes from integers: ``(1 - mask) * low``, 0 where ``mask`` is 1.

Exporters of attention models write it so. As a number it would take the whole range of the scores.
"""

from __future__ import annotations

import onnx_ir as ir

from qtune.ops.attention.masking import BLOCKED

_WHOLE = (ir.DataType.BOOL, ir.DataType.INT32, ir.DataType.INT64, ir.DataType.INT8)


def mask_of(node: ir.Node) -> tuple[ir.Value, float] | None:
    """What ``node`` is such a mask of, 0 where a position is blocked, and the number there."""
    if node.op_type == "Mul":
        for inverse, low in (node.inputs, node.inputs[::-1]):
            number = _number(low)
            source = None if number is None or number > BLOCKED else _inverted(inverse)
            if source is not None and number is not None:
                return source, number
    if node.op_type == "Where":  # low where 1 - mask is not 0, else that 0
        condition, low, inverse = node.inputs
        number, source = _number(low), _inverted(inverse)
        made = None if condition is None else condition.producer()
        same = made is not None and made.op_type == "Cast" and made.inputs[0] is inverse
        if same and source is not None and number is not None and number <= BLOCKED:
            return source, number
    return None


def _inverted(value: ir.Value | None) -> ir.Value | None:
    """The integers ``m`` of ``1 - m``."""
    maker = None if value is None else value.producer()
    if maker is None or maker.op_type != "Sub" or _number(maker.inputs[0]) != 1.0:
        return None
    mask = maker.inputs[1]
    cast = None if mask is None else mask.producer()
    source = cast.inputs[0] if cast is not None and cast.op_type == "Cast" else None
    return source if source is not None and source.dtype in _WHOLE else None


def _number(value: ir.Value | None) -> float | None:
    constant = None if value is None else value.const_value
    return (
        float(constant.numpy().reshape(())) if constant is not None and constant.size == 1 else None
    )
