"""ArgMax and ArgMin: ties take the lowest index."""

from __future__ import annotations

from typing import Any

from qtune.hbir.onnx_import.form import OnnxNode, emit, register_rewrite
from qtune.ops.kernel import Builder


def _rewrite(b: Builder, node: OnnxNode) -> Any:
    node.only(select_last_index=0)
    attrs = {key: node.attrs[key] for key in ("axis", "keepdims") if key in node.attrs}
    return emit(b, node, attrs)


register_rewrite("ArgMax", _rewrite)
register_rewrite("ArgMin", _rewrite)
