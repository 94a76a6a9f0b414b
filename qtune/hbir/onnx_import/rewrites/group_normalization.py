"""GroupNormalization: the parts of the registry's group_norm, weight and bias per channel."""

from __future__ import annotations

from typing import Any

from qtune.hbir.onnx_import.form import OnnxNode, register_rewrite
from qtune.hbir.onnx_import.rewrites.registered import lowered
from qtune.ops.kernel import Builder


def _rewrite(b: Builder, node: OnnxNode) -> Any:
    eps = float(node.attrs.get("epsilon", 1e-5))
    attrs = {"num_groups": int(node.attrs["num_groups"]), "eps": eps}
    return lowered(b, node, "group_norm", (0, 1, 2), attrs)


register_rewrite("GroupNormalization", _rewrite, is_composed=True)
