"""MaxPool: uneven pads as a Pad with the lowest value; rows as maps of height 1."""

from __future__ import annotations

from typing import Any

import numpy as np

from qtune.hbir.onnx_import.form import OnnxNode, register_rewrite, single
from qtune.hbir.onnx_import.rewrites.windows import Window, on_maps, window_of
from qtune.ops.kernel import Builder, Value


def _rewrite(b: Builder, node: OnnxNode) -> Any:
    single(node, "the maxima")
    if node.dtypes[0] != "float32":
        raise node.refusal(f"{node.dtypes[0]} maps have no form here, only float32")
    window = window_of(node)
    return on_maps(b, node, lambda x: _pooled(b, node, x, window))


def _pooled(b: Builder, node: OnnxNode, x: Any, window: Window) -> Value:
    attrs = {
        "kernel_shape": window.kernel,
        "strides": window.strides,
        "dilations": window.dilations,
        "pads": window.pads,
        "ceil_mode": int(node.attrs.get("ceil_mode", 0)),
    }
    if not window.is_even():
        places = np.array([0, 0, *window.pads[:2], 0, 0, *window.ends()], dtype=np.int64)
        lowest = b.constant(np.array(-np.inf, dtype=np.float32), "lowest")
        x = b.add("Pad", [x, b.constant(places, "pads"), lowest], {"mode": "constant"})
        attrs |= {"pads": (0, 0, 0, 0), "ceil_mode": 0}
    made: Value = b.add("MaxPool", [x], attrs)
    return made


register_rewrite("MaxPool", _rewrite)
