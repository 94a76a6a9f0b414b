"""MaxPool: maps of two axes; uneven pads as a Pad with the lowest value."""

from __future__ import annotations

from typing import Any

import numpy as np

from qtune.hbir.onnx_import.form import OnnxNode, register_rewrite, single
from qtune.hbir.onnx_import.rewrites.windows import geometry, is_even
from qtune.ops.kernel import Builder


def _rewrite(b: Builder, node: OnnxNode) -> Any:
    single(node, "the maxima")
    if node.dtypes[0] != "float32":
        raise node.refusal(f"{node.dtypes[0]} maps have no form here, only float32")
    kernel = tuple(node.attrs["kernel_shape"])
    attrs = geometry(node, kernel)
    if len(kernel) != 2:
        raise node.refusal(f"{len(kernel)} spatial axes have no form here, only 2")
    x, pads = node.inputs[0], attrs["pads"]
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, attrs["dilations"], strict=True)]
    wide = any(p > k // 2 for p, k in zip(pads[:2], kernel, strict=True))
    if wide or not is_even(pads):
        ceil = bool(node.attrs.get("ceil_mode", 0))
        ends = [_end(node, axis, pads, reach, attrs["strides"], ceil) for axis in range(2)]
        places = np.array([0, 0, pads[0], pads[1], 0, 0, *ends], dtype=np.int64)
        lowest = b.constant(np.array(-np.inf, dtype=np.float32), "lowest")
        x = b.add("Pad", [x, b.constant(places, "pads"), lowest], {"mode": "constant"})
        return b.add("MaxPool", [x], {**attrs, "pads": (0, 0, 0, 0), "ceil_mode": 0})
    return b.add("MaxPool", [x], {**attrs, "ceil_mode": node.attrs.get("ceil_mode", 0)})


def _end(node: OnnxNode, axis: int, pads: Any, reach: Any, strides: Any, ceil: bool) -> int:
    """What the end of an axis is padded by, so that the last window of ceil_mode is whole."""
    output = (node.output_shapes[0] or (0, 0, 0, 0))[2 + axis]
    needed = (output - 1) * strides[axis] + reach[axis] - node.shape()[2 + axis] - pads[axis]
    return max(pads[2 + axis], needed) if ceil else int(pads[2 + axis])


register_rewrite("MaxPool", _rewrite)
