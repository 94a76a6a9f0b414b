"""Clip: without bounds it passes its input on."""

from __future__ import annotations

from typing import Any

from qtune.hbir.onnx_import.form import OnnxNode, emit, register_rewrite
from qtune.ops.kernel import Builder


def _rewrite(b: Builder, node: OnnxNode) -> Any:
    if node.input(1) is None and node.input(2) is None:
        return b.add("Identity", [node.inputs[0]])
    return emit(b, node)


register_rewrite("Clip", _rewrite)
