"""Dropout at inference: passes its input on."""

from __future__ import annotations

from typing import Any

from qtune.hbir.onnx_import.form import OnnxNode, register_rewrite, single
from qtune.ops.kernel import Builder


def _rewrite(b: Builder, node: OnnxNode) -> Any:
    single(node, "the output")
    training = node.constant(2, "training mode")
    if training is not None and bool(training):
        raise node.refusal("training_mode=True has no form here")
    return b.add("Identity", [node.inputs[0]])


register_rewrite("Dropout", _rewrite)
