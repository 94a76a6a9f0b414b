"""Gemm: kept where it is a linear layer, else transposes, products and sums."""

from __future__ import annotations

from typing import Any

import numpy as np

from qtune.hbir.onnx_import.form import OnnxNode, OnnxWeight, register_rewrite
from qtune.ops.kernel import Builder, Value

Array = np.ndarray[Any, Any]


def _rewrite(b: Builder, node: OnnxNode) -> Any:
    turned = int(node.attrs.get("transB", 0))
    weight = node.weight(axis=0 if turned else 1)
    if weight is not None:
        linear = _quantized(b, node, weight, turned)
        if linear is not None:
            return linear
    return _plain(b, node, turned)


def _quantized(b: Builder, node: OnnxNode, weight: OnnxWeight, turned: int) -> Value | None:
    """A linear layer with alpha in the scales of its weight and beta in its bias."""
    alpha, beta = _factors(node)
    scaled = weight if alpha == 1.0 else weight.times(alpha)
    if scaled is None:
        return None
    addend = node.constants[2] if node.input(2) is not None else None
    if node.input(2) is not None and addend is None and beta != 1.0:
        return None
    bias = None if addend is None else _columns(node, addend, turned)
    x = _turned(b, node.inputs[0], bool(node.attrs.get("transA", 0)))
    grid = node.inputs[1] if scaled is weight else scaled.emit(b)
    operands = [x, grid, *([] if bias is None else [b.constant(bias * np.float32(beta), "bias")])]
    linear = b.add("Gemm", operands, {"transB": turned})
    if node.input(2) is None or bias is not None:
        return linear
    rest = node.inputs[2] if addend is None else b.constant(addend * np.float32(beta), "addend")
    return b.add("Add", [linear, rest])


def _plain(b: Builder, node: OnnxNode, turned: int) -> Any:
    alpha, beta = _factors(node)
    bias = _flat_bias(b, node, turned)
    is_linear = alpha == beta == 1.0 and not node.attrs.get("transA", 0)
    if is_linear and (node.input(2) is None or bias is not None) and _has_constant(node):
        operands = [*node.inputs[:2], *([] if bias is None else [bias])]
        return b.add("Gemm", operands, {"transB": turned})
    left = _turned(b, node.inputs[0], bool(node.attrs.get("transA", 0)))
    right = _turned(b, node.inputs[1], bool(turned))
    product = _scaled(b, b.add("MatMul", [left, right]), alpha)
    addend = node.input(2)
    return product if addend is None else b.add("Add", [product, _scaled(b, addend, beta)])


def _factors(node: OnnxNode) -> tuple[float, float]:
    return float(node.attrs.get("alpha", 1.0)), float(node.attrs.get("beta", 1.0))


def _has_constant(node: OnnxNode) -> bool:
    """Whether the matrix is a constant: a product of two results is no linear layer."""
    return node.constants[1] is not None or node.weight() is not None


def _flat_bias(b: Builder, node: OnnxNode, turned: int) -> Value | None:
    """The addend as one number per output column, or ``None``."""
    if node.input(2) is None:
        return None
    if node.shape(2) == (node.shape(1)[0 if turned else 1],):
        return node.inputs[2]
    array = node.constants[2]
    bias = None if array is None else _columns(node, array, turned)
    return None if bias is None else b.constant(bias, "bias")


def _columns(node: OnnxNode, addend: Array, turned: int) -> Array | None:
    """A constant addend as one number per output column; ``None`` where its rows differ."""
    columns = node.shape(1)[0 if turned else 1]
    if addend.size == 1:
        return np.full(columns, addend.reshape(()), dtype=addend.dtype)
    if addend.size == columns and addend.shape[-1:] == (columns,):
        return addend.reshape(-1)
    return None


def _turned(b: Builder, value: Any, is_turned: bool) -> Any:
    return b.add("Transpose", [value], {"perm": (1, 0)}) if is_turned else value


def _scaled(b: Builder, value: Any, factor: float) -> Any:
    if factor == 1.0:
        return value
    return b.add("Mul", [value, b.constant(np.array(factor, dtype=np.float32), "factor")])


register_rewrite("Gemm", _rewrite)
