"""LayerNormalization: the registry's layer_norm; with its statistics, where they are read."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from qtune.hbir.onnx_import.form import OnnxNode, register_rewrite
from qtune.hbir.onnx_import.rewrites.registered import lowered
from qtune.ops.kernel import Builder


def _rewrite(b: Builder, node: OnnxNode) -> Any:
    axis, eps = _axis(node), float(node.attrs.get("epsilon", 1e-5))
    if node.outputs > 1:
        return _with_statistics(b, node, axis, eps)
    attrs = {"normalized_shape": node.shape()[axis:], "eps": eps}
    return lowered(b, node, "layer_norm", (0, 1, 2), attrs)


def _with_statistics(b: Builder, node: OnnxNode, axis: int, eps: float) -> Any:
    """``y``, the mean and ``1 / sqrt(variance + eps)``."""
    x, weight, bias = (node.input(i) for i in range(3))
    axes = b.constant(np.arange(axis, len(node.shape()), dtype=np.int64), "axes")
    mean = b.add("ReduceMean", [x, axes], {"keepdims": 1})
    difference = b.add("Sub", [x, mean])
    square = b.add("Mul", [difference, difference])
    variance = b.add("ReduceMean", [square, axes], {"keepdims": 1})
    inverse = b.add("Rsqrt", [variance], {"eps": eps}, domain="qtune")
    y = b.add("Mul", [b.add("Mul", [difference, inverse]), weight])
    return (y if bias is None else b.add("Add", [y, bias])), mean, inverse


def _axis(node: OnnxNode) -> int:
    shape = node.shape()
    axis = int(node.attrs.get("axis", -1)) % max(len(shape), 1)
    if not shape or not math.prod(shape[axis:]):
        raise node.refusal(f"the shape {list(shape)} has no elements to take a mean over")
    return axis


register_rewrite("LayerNormalization", _rewrite, is_composed=True)
