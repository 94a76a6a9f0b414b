"""PRelu with one slope or one per channel (dimension 1)."""

from __future__ import annotations

from typing import Any

import numpy as np

from qtune.hbir.onnx_import.form import OnnxNode, OnnxWeight, register_rewrite
from qtune.ops.kernel import Builder


def _rewrite(b: Builder, node: OnnxNode) -> Any:
    x, slope = node.shape(), node.shape(1)
    count = max(slope, default=1)
    channels = x[1] if len(x) > 1 else 1
    aligned = (*[1] * (len(x) - len(slope)), *slope)
    per_channel = len(x) > 1 and aligned == (1, channels, *[1] * (len(x) - 2))
    if not (per_channel or count == 1):
        return _by_parts(b, node)
    weight = node.weights[1]
    if weight is not None:
        axis = -1 if weight.axis < 0 else 0
        flat = OnnxWeight(weight.data.reshape(-1), weight.scale, axis, weight.limits).emit(b)
    else:
        array = node.constant(1, "slopes")
        flat = node.inputs[1] if array is None else b.constant(array.reshape(-1), "slope")
    return b.add("PRelu", [node.inputs[0], flat], domain="qtune")


def _by_parts(b: Builder, node: OnnxNode) -> Any:
    """Slopes of any other shape: ``max(x, 0) + slope * min(x, 0)``."""
    x, zero = node.inputs[0], b.constant(np.array(0, dtype=np.float32), "zero")
    below = b.add("Mul", [b.add("Min", [x, zero]), node.inputs[1]])
    return b.add("Add", [b.add("Relu", [x]), below])


register_rewrite("PRelu", _rewrite)
