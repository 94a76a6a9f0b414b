"""Div and Pow: integers divide and power otherwise than floats, and have no form here."""

from __future__ import annotations

from typing import Any

from qtune.hbir.onnx_import.form import OnnxNode, emit, register_rewrite
from qtune.ops.kernel import Builder


def _floats_only(b: Builder, node: OnnxNode) -> Any:
    if node.dtypes[0] != "float32":
        raise node.refusal(f"{node.dtypes[0]} operands have no form here, only float32")
    return emit(b, node)


register_rewrite("Div", _floats_only)
register_rewrite("Pow", _floats_only)
