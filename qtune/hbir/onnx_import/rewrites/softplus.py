"""Softplus: ours with beta 1; torch's threshold lies where the function is its input."""

from __future__ import annotations

from typing import Any

from qtune.hbir.onnx_import.form import OnnxNode, register_rewrite
from qtune.ops.kernel import Builder


def _rewrite(b: Builder, node: OnnxNode) -> Any:
    attrs = {"beta": 1.0, "threshold": 20.0}
    return b.add("ScaledSoftplus", [node.inputs[0]], attrs, domain="qtune")


register_rewrite("Softplus", _rewrite)
