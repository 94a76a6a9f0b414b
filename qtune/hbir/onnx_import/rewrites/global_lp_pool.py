"""GlobalLpPool: the p-norm of every map."""

from __future__ import annotations

from typing import Any

from qtune.hbir.onnx_import.form import OnnxNode, register_rewrite
from qtune.hbir.onnx_import.rewrites.norms import norm
from qtune.ops.kernel import Builder


def _rewrite(b: Builder, node: OnnxNode) -> Any:
    return norm(b, node.inputs[0], range(2, len(node.shape())), int(node.attrs.get("p", 2)))


register_rewrite("GlobalLpPool", _rewrite, is_composed=True)
