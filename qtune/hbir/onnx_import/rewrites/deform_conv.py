"""DeformConv: explicit pads, strides and dilations."""

from __future__ import annotations

from typing import Any

from qtune.hbir.onnx_import.form import OnnxNode, emit, register_rewrite
from qtune.hbir.onnx_import.rewrites.windows import geometry, kernel_of
from qtune.ops.kernel import Builder


def _rewrite(b: Builder, node: OnnxNode) -> Any:
    node.weight(axis=0)
    attrs = {key: node.attrs.get(key, 1) for key in ("group", "offset_group")}
    return emit(b, node, {**geometry(node, kernel_of(node)), **attrs})


register_rewrite("DeformConv", _rewrite)
