"""AveragePool: explicit pads, even ones where they don't count; rows as maps of height 1."""

from __future__ import annotations

from typing import Any

import numpy as np

from qtune.hbir.onnx_import.form import OnnxNode, register_rewrite
from qtune.hbir.onnx_import.rewrites.windows import Window, on_maps, window_of
from qtune.ops.kernel import Builder, Value


def _rewrite(b: Builder, node: OnnxNode) -> Any:
    window = window_of(node)
    if max(window.dilations) > 1:
        raise node.refusal("dilations have no form here")
    counts = bool(node.attrs.get("count_include_pad", 0))
    return on_maps(b, node, lambda x: _pooled(b, node, x, window, counts))


def _pooled(b: Builder, node: OnnxNode, x: Any, window: Window, counts: bool) -> Value:
    attrs = {"kernel_shape": window.kernel, "strides": window.strides}
    if window.is_even():
        ceil = int(node.attrs.get("ceil_mode", 0))
        rest = {"pads": window.pads, "count_include_pad": int(counts), "ceil_mode": ceil}
        made: Value = b.add("AveragePool", [x], {**attrs, **rest})
        return made
    places = np.array([0, 0, *window.pads[:2], 0, 0, *window.ends()], dtype=np.int64)
    x = b.add("Pad", [x, b.constant(places, "pads")], {"mode": "constant"})
    whole = {"pads": (0, 0, 0, 0), "count_include_pad": 1, "ceil_mode": 0}
    made = b.add("AveragePool", [x], {**attrs, **whole})
    shares = _shares(node, window, counts)
    return made if (shares == 1).all() else b.add("Mul", [made, b.constant(shares, "shares")])


def _shares(node: OnnxNode, window: Window, counts: bool) -> Any:
    """Elements of a window by those that count, for each place of the result."""
    found = []
    for axis, size in enumerate(window.sizes):
        begin, end = window.pads[axis], window.pads[axis + 2]
        ones = np.pad(np.ones(size, np.float32), (begin, end), constant_values=float(counts))
        ones = np.pad(ones, (0, window.ends()[axis] - end))
        windows = np.lib.stride_tricks.sliding_window_view(ones, window.kernel[axis])
        found.append(windows[:: window.strides[axis]].sum(axis=1))
    total = np.multiply.outer(found[0], found[1])
    if not total.all():
        raise node.refusal(f"with the pads {window.pads} a window holds padding only")
    return (np.float32(np.prod(window.kernel)) / total).astype(np.float32)


register_rewrite("AveragePool", _rewrite)
