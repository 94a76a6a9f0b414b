"""Flatten: a Reshape to a matrix."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from qtune.hbir.onnx_import.form import OnnxNode, register_rewrite
from qtune.ops.kernel import Builder


def _rewrite(b: Builder, node: OnnxNode) -> Any:
    shape = node.shape()
    axis = int(node.attrs.get("axis", 1))
    axis += len(shape) if axis < 0 else 0
    rest = prod(shape[axis:])
    # 0 copies the first size, so that another batch runs too
    target = [0, rest] if axis == 1 else [prod(shape[:axis]), rest]
    return b.add("Reshape", [node.inputs[0], b.constant(np.array(target, np.int64), "shape")])


register_rewrite("Flatten", _rewrite)
