"""Div: integers divide otherwise than floats, and have no form here."""

from __future__ import annotations

from typing import Any

import numpy as np

from qtune.arith.quantize import scale_from_absmax
from qtune.dtype import qint16
from qtune.hbir.onnx_import.form import OnnxNode, OnnxWeight, emit, register_rewrite
from qtune.ops.kernel import Builder


def _floats_only(b: Builder, node: OnnxNode) -> Any:
    if node.dtypes[0] != "float32":
        raise node.refusal(f"{node.dtypes[0]} operands have no form here, only float32")
    return emit(b, node)


def _divide(b: Builder, node: OnnxNode) -> Any:
    """By a quantized tensor: times its reciprocals, on an int16 grid of their own."""
    divisor = node.weight()
    if divisor is None or not divisor.values().all():
        return _floats_only(b, node)
    inverse = np.float32(1) / divisor.values()
    scale = scale_from_absmax(np.abs(inverse).max(), qint16).reshape(1)
    limits = (qint16.qmin, qint16.qmax)
    factor = OnnxWeight(inverse, scale, -1, limits, half_up=True).emit(b)
    return b.add("Mul", [node.inputs[0], factor])


register_rewrite("Div", _divide)
