"""Gemm: kept where it is a linear layer, else transposes, products and sums."""

from __future__ import annotations

from typing import Any

import numpy as np

from qtune.hbir.onnx_import.form import OnnxNode, register_rewrite
from qtune.ops.kernel import Builder, Value


def _rewrite(b: Builder, node: OnnxNode) -> Any:
    node.check_weight()
    alpha, beta = float(node.attrs.get("alpha", 1.0)), float(node.attrs.get("beta", 1.0))
    bias = _flat_bias(b, node)
    is_linear = alpha == beta == 1.0 and not node.attrs.get("transA", 0)
    if is_linear and (node.input(2) is None or bias is not None):
        operands = [*node.inputs[:2], *([] if bias is None else [bias])]
        return b.add("Gemm", operands, {"transB": node.attrs.get("transB", 0)})
    left, right = (
        _turned(b, value, bool(node.attrs.get(key, 0)))
        for value, key in zip(node.inputs[:2], ("transA", "transB"), strict=True)
    )
    product = _scaled(b, b.add("MatMul", [left, right]), alpha)
    addend = node.input(2)
    return product if addend is None else b.add("Add", [product, _scaled(b, addend, beta)])


def _flat_bias(b: Builder, node: OnnxNode) -> Value | None:
    """The addend as one number per output column, or ``None``."""
    if node.input(2) is None:
        return None
    columns = node.shape(1)[0 if node.attrs.get("transB", 0) else 1]
    shape = node.shape(2)
    if shape == (columns,):
        return node.inputs[2]
    array = node.constants[2]
    if array is not None and array.size == columns and shape[-1:] == (columns,):
        return b.constant(array.reshape(-1), "bias")
    return None


def _turned(b: Builder, value: Any, is_turned: bool) -> Any:
    return b.add("Transpose", [value], {"perm": (1, 0)}) if is_turned else value


def _scaled(b: Builder, value: Any, factor: float) -> Any:
    if factor == 1.0:
        return value
    return b.add("Mul", [value, b.constant(np.array(factor, dtype=np.float32), "factor")])


register_rewrite("Gemm", _rewrite)
