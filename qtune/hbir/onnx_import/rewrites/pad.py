"""Pad: one pair of sizes for every axis, whichever axes the file names."""

from __future__ import annotations

from typing import Any

import numpy as np

from qtune.hbir.onnx_import.form import OnnxNode, register_rewrite
from qtune.ops.kernel import Builder


def _rewrite(b: Builder, node: OnnxNode) -> Any:
    pads = node.constant(1, "pads")
    if pads is None:
        raise node.refusal("it has no pads")
    rank = len(node.shape())
    named = node.constant(3, "axes")
    axes = range(rank) if named is None else [int(a) % rank for a in named]
    sizes = np.zeros(2 * rank, dtype=np.int64)
    half = len(pads) // 2
    for place, axis in enumerate(axes):
        sizes[axis], sizes[rank + axis] = pads[place], pads[half + place]
    inputs = [node.inputs[0], b.constant(sizes, "pads")]
    value = node.constant(2, "pad value")
    if value is not None:
        inputs.append(b.constant(value.reshape(()), "value"))
    return b.add("Pad", inputs, {"mode": node.attrs.get("mode", "constant")})


register_rewrite("Pad", _rewrite)
