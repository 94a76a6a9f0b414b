"""LRN of maps: x / (bias + alpha * mean of the squares of near channels) ** beta."""

from __future__ import annotations

from typing import Any

import numpy as np

from qtune.hbir.onnx_import.form import OnnxNode, register_rewrite
from qtune.ops.kernel import Builder


def _rewrite(b: Builder, node: OnnxNode) -> Any:
    if len(node.shape()) != 4:
        raise node.refusal(f"the shape {list(node.shape())} has no form here, only maps NCHW")
    x, attrs = node.inputs[0], node.attrs
    size = int(attrs["size"])
    value = b.add("Mul", [x, x], {})
    # The channels become the last axis, so that their windows are those of a pool.
    value = b.add("Transpose", [value], {"perm": (0, 2, 3, 1)})
    places = np.array([0, 0, 0, (size - 1) // 2, 0, 0, 0, size // 2], dtype=np.int64)
    value = b.add("Pad", [value, b.constant(places, "pads")], {"mode": "constant"})
    window = {"kernel_shape": (1, size), "strides": (1, 1), "pads": (0, 0, 0, 0)}
    value = b.add("AveragePool", [value], {**window, "count_include_pad": 1, "ceil_mode": 0})
    value = b.add("Transpose", [value], {"perm": (0, 3, 1, 2)})
    for op_type, number in (
        ("Mul", attrs.get("alpha", 1e-4)),
        ("Add", attrs.get("bias", 1.0)),
        ("Pow", attrs.get("beta", 0.75)),
    ):
        operand = b.constant(np.array(number, np.float32), op_type.lower())
        value = b.add(op_type, [value, operand], {})
    return b.add("Div", [x, value], {})


register_rewrite("LRN", _rewrite, is_composed=True)
