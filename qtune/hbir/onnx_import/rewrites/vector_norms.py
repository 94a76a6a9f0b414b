"""ReduceL1 and ReduceL2: the registry's vector_norm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from qtune.hbir.onnx_import.form import OnnxNode, register_rewrite
from qtune.hbir.onnx_import.rewrites.registered import lowered
from qtune.ops.kernel import Builder


def _of_order(order: float) -> Callable[[Builder, OnnxNode], Any]:
    def rewrite(b: Builder, node: OnnxNode) -> Any:
        axes = node.constant(1, "axes")
        keepdim = bool(node.attrs.get("keepdims", 1))
        if axes is None or not axes.size:
            if node.attrs.get("noop_with_empty_axes", 0):
                return b.add("Abs", [node.inputs[0]])
            axes = None
        if node.dtypes[0] != "float32":
            raise node.refusal(f"{node.dtypes[0]} numbers have no form here, only float32")
        dims = None if axes is None else tuple(int(axis) for axis in axes.reshape(-1))
        attrs = {"ord": order, "dim": dims, "keepdim": keepdim}
        return lowered(b, node, "vector_norm", (0,), attrs)

    return rewrite


for _name, _order in (("ReduceL1", 1.0), ("ReduceL2", 2.0)):
    register_rewrite(_name, _of_order(_order), is_composed=_order != 1.0)
