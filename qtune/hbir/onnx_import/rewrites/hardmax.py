"""Hardmax: 1 at the first of the largest elements along an axis, else 0."""

from __future__ import annotations

from typing import Any

import numpy as np

from qtune.hbir.onnx_import.form import OnnxNode, register_rewrite
from qtune.hbir.onnx_import.rewrites.one_hot import marked
from qtune.ops.kernel import Builder


def _rewrite(b: Builder, node: OnnxNode) -> Any:
    shape = node.shape()
    axis = int(node.attrs.get("axis", -1)) % len(shape)
    first = b.add("ArgMax", [node.inputs[0]], {"axis": axis, "keepdims": 1})
    return marked(b, first, shape[axis], axis, len(shape), np.array([0, 1], dtype=np.float32))


register_rewrite("Hardmax", _rewrite)
