"""ThresholdedRelu: what is above alpha, else 0 (the registry's threshold)."""

from __future__ import annotations

from typing import Any

from qtune.hbir.onnx_import.form import OnnxNode, register_rewrite
from qtune.hbir.onnx_import.rewrites.registered import lowered
from qtune.ops.kernel import Builder


def _rewrite(b: Builder, node: OnnxNode) -> Any:
    alpha = float(node.attrs.get("alpha", 1.0))
    return lowered(b, node, "threshold", (0,), {"threshold": alpha, "value": 0.0})


register_rewrite("ThresholdedRelu", _rewrite)
