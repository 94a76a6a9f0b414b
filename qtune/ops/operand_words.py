"""How a refused conversion speaks of operands, and what it advises: torch models and ONNX files."""

from __future__ import annotations

import numpy as np

from qtune.ops.kernel import FloatConst, FloatValue, Operand, PlainValue, QConst, QValue

GIVE_SCALE = (
    "Give the operator that makes it a qconfig with an output dtype (in an ONNX file: a "
    "calibration node behind it)"
)
GIVE_WEIGHT_SCALE = (
    "Give the operator a qconfig with a weight fake-quantize (in an ONNX file: make it a constant "
    "behind a calibration node)"
)


_PENDING = "a result without an output scale"


def described(operand: Operand | None) -> str:
    """What ``operand`` is, in words.

    >>> described(None)
    'left out'
    """
    if operand is None:
        return "left out"
    if isinstance(operand, QConst):
        count = np.size(operand.scale)
        return f"a quantized constant with {count} scale{'s' if count != 1 else ''}"
    if isinstance(operand, QValue):
        return f"{operand.dtype} codes that the graph computes"
    if isinstance(operand, FloatConst):
        return f"a float constant of shape {operand.data.shape} without scale"
    if isinstance(operand, FloatValue):
        return "a float tensor"
    return "a mask or integers" if isinstance(operand, PlainValue) else _PENDING
