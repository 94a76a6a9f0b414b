"""ReduceSum, ReduceMean, ReduceMax and ReduceMin: axes always given."""

from __future__ import annotations

from typing import Any

import numpy as np

from qtune.hbir.onnx_import.form import OnnxNode, register_rewrite
from qtune.ops.kernel import Builder


def _rewrite(b: Builder, node: OnnxNode) -> Any:
    axes = node.constant(1, "axes")
    if axes is None or axes.size == 0:
        if node.attrs.get("noop_with_empty_axes", 0):
            return b.add("Identity", [node.inputs[0]])
        axes = np.arange(len(node.shape()), dtype=np.int64)
    if node.op_type in ("ReduceMax", "ReduceMin") and node.dtypes[0] == "bool":
        raise node.refusal("extrema of bool have no form here")
    if node.op_type in ("ReduceMax", "ReduceMin") and 0 in node.shape():
        raise node.refusal("extrema of an empty tensor have no form here")
    attrs = {"keepdims": node.attrs.get("keepdims", 1)}
    return b.add(node.op_type, [node.inputs[0], b.constant(axes.astype(np.int64), "axes")], attrs)


for _name in ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin"):
    register_rewrite(_name, _rewrite)
