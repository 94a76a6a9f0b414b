"""MeanVarianceNormalization: (x - mean) / (sqrt(variance) + 1e-9) over the axes."""

from __future__ import annotations

from typing import Any

import numpy as np

from qtune.hbir.onnx_import.form import OnnxNode, register_rewrite
from qtune.ops.kernel import Builder

_EPSILON = np.array(1e-9, dtype=np.float32)


def _rewrite(b: Builder, node: OnnxNode) -> Any:
    axes = b.constant(np.array(node.attrs.get("axes") or (0, 2, 3), dtype=np.int64), "axes")
    mean = b.add("ReduceMean", [node.inputs[0], axes], {"keepdims": 1})
    centered = b.add("Sub", [node.inputs[0], mean])
    square = b.add("Mul", [centered, centered])
    spread = b.add("Sqrt", [b.add("ReduceMean", [square, axes], {"keepdims": 1})])
    return b.add("Div", [centered, b.add("Add", [spread, b.constant(_EPSILON, "epsilon")])])


register_rewrite("MeanVarianceNormalization", _rewrite, is_composed=True)
