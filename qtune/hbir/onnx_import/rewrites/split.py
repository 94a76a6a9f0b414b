"""Split: sizes always given, also where the file states the number of parts only."""

from __future__ import annotations

from typing import Any

import numpy as np

from qtune.hbir.onnx_import.form import OnnxNode, register_rewrite
from qtune.ops.kernel import Builder


def _rewrite(b: Builder, node: OnnxNode) -> Any:
    sizes = node.constant(1, "sizes")
    axis = int(node.attrs.get("axis", 0))
    if sizes is None:
        whole = node.shape()[axis]
        count = int(node.attrs.get("num_outputs", len(node.output_shapes)))
        part = -(-whole // count)
        sizes = np.array([part] * (count - 1) + [whole - part * (count - 1)], dtype=np.int64)
    parts = b.constant(sizes.astype(np.int64), "split")
    return b.add("Split", [node.inputs[0], parts], {"axis": axis}, outputs=len(sizes))


register_rewrite("Split", _rewrite)
