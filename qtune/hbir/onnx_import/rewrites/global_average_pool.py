"""GlobalAveragePool of maps that have not two spatial axes: a mean over all of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from qtune.hbir.onnx_import.form import OnnxNode, emit, register_rewrite
from qtune.ops.kernel import Builder


def _rewrite(b: Builder, node: OnnxNode) -> Any:
    rank = len(node.shape())
    if rank == 4:
        return emit(b, node)
    axes = b.constant(np.arange(2, rank, dtype=np.int64), "axes")
    return b.add("ReduceMean", [node.inputs[0], axes], {"keepdims": 1})


register_rewrite("GlobalAveragePool", _rewrite)
