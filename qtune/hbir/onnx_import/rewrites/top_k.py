"""TopK: both results, whichever of them is read."""

from __future__ import annotations

from typing import Any

from qtune.hbir.onnx_import.form import OnnxNode, register_rewrite
from qtune.ops.kernel import Builder


def _rewrite(b: Builder, node: OnnxNode) -> Any:
    return b.add("TopK", node.inputs, node.attrs, outputs=2)


register_rewrite("TopK", _rewrite)
