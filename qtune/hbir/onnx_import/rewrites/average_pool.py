"""AveragePool: explicit pads, even ones where they don't count."""

from __future__ import annotations

from typing import Any

import numpy as np

from qtune.hbir.onnx_import.form import OnnxNode, register_rewrite
from qtune.hbir.onnx_import.rewrites.windows import geometry, is_even
from qtune.ops.kernel import Builder


def _rewrite(b: Builder, node: OnnxNode) -> Any:
    kernel = tuple(node.attrs["kernel_shape"])
    attrs = geometry(node, kernel)
    if len(kernel) != 2:
        raise node.refusal(f"{len(kernel)} spatial axes have no form here, only 2")
    if max(attrs.pop("dilations")) > 1:
        raise node.refusal("dilations have no form here")
    counts = int(node.attrs.get("count_include_pad", 0))
    ceil = int(node.attrs.get("ceil_mode", 0))
    x, pads = node.inputs[0], attrs["pads"]
    wide = any(p > k // 2 for p, k in zip(pads[:2], kernel, strict=True))
    if wide or not is_even(pads):
        if ceil:
            raise node.refusal(
                f"the pads {pads} differ at both ends or exceed half the kernel; this has a form "
                "only with ceil_mode=0"
            )
        places = np.array([0, 0, *pads[:2], 0, 0, *pads[2:]], dtype=np.int64)
        x = b.add("Pad", [x, b.constant(places, "pads")], {"mode": "constant"})
        padded = {**attrs, "pads": (0, 0, 0, 0), "count_include_pad": 1, "ceil_mode": 0}
        mean = b.add("AveragePool", [x], padded)
        if counts:
            return mean
        return b.add("Mul", [mean, b.constant(_shares(node, kernel, attrs), "shares")])
    return b.add("AveragePool", [x], {**attrs, "count_include_pad": counts, "ceil_mode": ceil})


def _shares(node: OnnxNode, kernel: tuple[int, ...], attrs: dict[str, Any]) -> Any:
    """Elements of a window by those that are no padding, for each place of the result."""
    counts = []
    for axis, size in enumerate(node.shape()[2:]):
        begin, end = attrs["pads"][axis], attrs["pads"][axis + 2]
        real = np.pad(np.ones(size, dtype=np.float32), (begin, end))
        windows = np.lib.stride_tricks.sliding_window_view(real, kernel[axis])
        counts.append(windows[:: attrs["strides"][axis]].sum(axis=1))
    found = np.multiply.outer(counts[0], counts[1])
    if not found.all():
        raise node.refusal(f"with the pads {attrs['pads']} a window holds padding only")
    return (np.float32(np.prod(kernel)) / found).astype(np.float32)


register_rewrite("AveragePool", _rewrite)
