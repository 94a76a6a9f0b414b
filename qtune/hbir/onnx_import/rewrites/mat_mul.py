"""MatMul with a constant quantized matrix: a linear layer without bias, one scale per column."""

from __future__ import annotations

from typing import Any

from qtune.hbir.onnx_import.form import OnnxNode, emit, register_rewrite
from qtune.ops.kernel import Builder


def _rewrite(b: Builder, node: OnnxNode) -> Any:
    weight = node.weight()
    if weight is None or weight.data.ndim != 2 or len(node.shape()) < 2:
        return emit(b, node)
    node.weight(axis=1)
    matrix = weight.transposed().emit(b)
    return b.add("LinearNoBias", [node.inputs[0], matrix], {}, domain="qtune")


register_rewrite("MatMul", _rewrite)
