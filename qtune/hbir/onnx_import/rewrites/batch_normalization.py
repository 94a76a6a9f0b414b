"""BatchNormalization at inference."""

from __future__ import annotations

from typing import Any

from qtune.hbir.onnx_import.form import OnnxNode, register_rewrite, single
from qtune.ops.kernel import Builder


def _rewrite(b: Builder, node: OnnxNode) -> Any:
    node.only(training_mode=0)
    single(node, "the output")
    return b.add("BatchNormalization", node.inputs, {"epsilon": node.attrs.get("epsilon", 1e-5)})


register_rewrite("BatchNormalization", _rewrite)
