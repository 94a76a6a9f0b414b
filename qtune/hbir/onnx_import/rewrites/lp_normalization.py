"""LpNormalization: x divided by its norm along an axis; 0 where the norm is 0, as onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np

from qtune.hbir.onnx_import.form import OnnxNode, register_rewrite
from qtune.hbir.onnx_import.rewrites.norms import norm
from qtune.ops.kernel import Builder

_SMALLEST = np.finfo(np.float32).tiny


def _rewrite(b: Builder, node: OnnxNode) -> Any:
    axes = [int(node.attrs.get("axis", -1)) % len(node.shape())]
    length = norm(b, node.inputs[0], axes, int(node.attrs.get("p", 2)))
    above = b.add("Max", [length, b.constant(np.array(_SMALLEST), "smallest")])
    return b.add("Div", [node.inputs[0], above])


register_rewrite("LpNormalization", _rewrite, is_composed=True)
