"""Reciprocal of a square root that nothing rounds: one table, 1 / sqrt(x + eps)."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from qtune.hbir.onnx_import.form import OnnxNode, emit, register_rewrite
from qtune.ops.kernel import Builder


def _rewrite(b: Builder, node: OnnxNode) -> Any:
    root = _maker(node.inputs[0], "Sqrt")
    if root is None:
        return emit(b, node)
    value, eps = _without_eps(root.inputs[0])
    return b.add("Rsqrt", [value], {"eps": eps}, domain="qtune")


def _without_eps(value: ir.Value | None) -> tuple[ir.Value | None, float]:
    """What a number is added to, and that number; the value itself and 0 where none is."""
    total = _maker(value, "Add")
    for x, number in () if total is None else (total.inputs, total.inputs[::-1]):
        if x is None or number is None or number.const_value is None or x.shape is None:
            continue
        array = number.const_value.numpy()
        if array.size == 1 and array.ndim <= len(x.shape):
            return x, float(array.reshape(()))
    return value, 0.0


def _maker(value: ir.Value | None, op_type: str) -> ir.Node | None:
    maker = None if value is None else value.producer()
    return maker if maker is not None and (maker.domain, maker.op_type) == ("", op_type) else None


register_rewrite("Reciprocal", _rewrite)
