"""IsNaN: what is not equal to itself."""

from __future__ import annotations

from typing import Any

from qtune.hbir.onnx_import.form import OnnxNode, register_rewrite
from qtune.ops.kernel import Builder


def _rewrite(b: Builder, node: OnnxNode) -> Any:
    return b.add("Not", [b.add("Equal", [node.inputs[0], node.inputs[0]])])


register_rewrite("IsNaN", _rewrite)
