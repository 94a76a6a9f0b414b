"""CumSum of floats along a constant axis."""

from __future__ import annotations

from typing import Any

from qtune.hbir.onnx_import.form import OnnxNode, emit, register_rewrite
from qtune.ops.kernel import Builder


def _rewrite(b: Builder, node: OnnxNode) -> Any:
    if node.dtypes[0] not in ("float32", "int64"):
        raise node.refusal(f"{node.dtypes[0]} elements have no form here, only float32 and int64")
    return emit(b, node)


register_rewrite("CumSum", _rewrite)
