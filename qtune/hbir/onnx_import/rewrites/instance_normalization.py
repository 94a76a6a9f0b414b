"""InstanceNormalization: the parts of the registry's operator of this name."""

from __future__ import annotations

from typing import Any

from qtune.hbir.onnx_import.form import OnnxNode, register_rewrite
from qtune.hbir.onnx_import.rewrites.registered import lowered
from qtune.ops.kernel import Builder


def _rewrite(b: Builder, node: OnnxNode) -> Any:
    space = len(node.shape()) - 2
    if space < 1:
        raise node.refusal(f"the shape {list(node.shape())} has no elements to take a mean over")
    attrs = {"running": False, "eps": float(node.attrs.get("epsilon", 1e-5)), "space": space}
    return lowered(b, node, "instance_norm", (0, None, None, 1, 2, None), attrs)


register_rewrite("InstanceNormalization", _rewrite, is_composed=True)
