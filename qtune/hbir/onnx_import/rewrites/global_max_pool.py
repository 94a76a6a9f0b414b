"""GlobalMaxPool: a maximum over all spatial axes."""

from __future__ import annotations

from typing import Any

import numpy as np

from qtune.hbir.onnx_import.form import OnnxNode, register_rewrite
from qtune.ops.kernel import Builder


def _rewrite(b: Builder, node: OnnxNode) -> Any:
    axes = b.constant(np.arange(2, len(node.shape()), dtype=np.int64), "axes")
    return b.add("ReduceMax", [node.inputs[0], axes], {"keepdims": 1})


register_rewrite("GlobalMaxPool", _rewrite)
