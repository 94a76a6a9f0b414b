"""Mod: of floats by a number, the registry's fmod; of integers as it is."""

from __future__ import annotations

from typing import Any

from qtune.hbir.onnx_import.form import OnnxNode, emit, register_rewrite
from qtune.hbir.onnx_import.rewrites.registered import lowered
from qtune.ops.kernel import Builder


def _rewrite(b: Builder, node: OnnxNode) -> Any:
    divisor = node.constants[1]
    if node.dtypes[0] != "float32" or divisor is None or divisor.size != 1:
        return emit(b, node)
    if divisor.ndim > len(node.shape()) or not divisor.all():
        return emit(b, node)
    return lowered(b, node, "fmod", (0,), {"divisor": float(divisor.reshape(()))})


register_rewrite("Mod", _rewrite)
