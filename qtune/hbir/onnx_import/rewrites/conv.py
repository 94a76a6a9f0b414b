"""Conv: explicit pads, strides and dilations."""

from __future__ import annotations

from typing import Any

from qtune.hbir.onnx_import.form import OnnxNode, emit, register_rewrite
from qtune.hbir.onnx_import.rewrites.windows import geometry, kernel_of
from qtune.ops.kernel import Builder


def _rewrite(b: Builder, node: OnnxNode) -> Any:
    node.weight(axis=0)
    return emit(b, node, {**geometry(node, kernel_of(node)), "group": node.attrs.get("group", 1)})


register_rewrite("Conv", _rewrite)
