"""Reshape: a first size that stays is copied, so that another batch runs too."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from qtune.hbir.onnx_import.form import OnnxNode, register_rewrite
from qtune.ops.kernel import Builder


def _rewrite(b: Builder, node: OnnxNode) -> Any:
    target = node.constant(1, "sizes")
    shape = node.shape()
    if target is None:
        raise node.refusal("it has no target shape")
    sizes = [int(size) for size in target]
    if not node.attrs.get("allowzero", 0):
        sizes = [shape[i] if size == 0 else size for i, size in enumerate(sizes)]
    known = prod(size for size in sizes if size != -1)
    sizes = [prod(shape) // known if size == -1 and known else size for size in sizes]
    if sizes and shape and sizes[0] == shape[0] and 0 not in sizes:
        sizes[0] = 0
    attrs = {"allowzero": 1} if 0 in sizes[1:] else {}
    return b.add("Reshape", [node.inputs[0], b.constant(np.array(sizes, np.int64), "shape")], attrs)


register_rewrite("Reshape", _rewrite)
