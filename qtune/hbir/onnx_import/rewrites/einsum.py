"""Einsum: transposes and matrix products (or products and sums), as the registry's einsum."""

from __future__ import annotations

from typing import Any

from qtune.hbir.onnx_import.form import OnnxNode, register_rewrite
from qtune.hbir.onnx_import.rewrites.registered import lowered
from qtune.ops.gemm.einsum import refuse_diagonals
from qtune.ops.kernel import Builder


def _rewrite(b: Builder, node: OnnxNode) -> Any:
    equation = node.attrs["equation"]
    if any(dtype != "float32" for dtype in node.dtypes):
        raise node.refusal(f"{node.dtypes[0]} operands have no form here, only float32")
    try:
        refuse_diagonals(equation)
    except NotImplementedError as error:
        raise node.refusal(str(error)) from None
    return lowered(b, node, "einsum", range(len(node.inputs)), {"equation": equation})


register_rewrite("Einsum", _rewrite)
