"""GridSample of maps [N, C, H, W], bilinear."""

from __future__ import annotations

from typing import Any

from qtune.hbir.onnx_import.form import OnnxNode, emit, register_rewrite
from qtune.ops.kernel import Builder


def _rewrite(b: Builder, node: OnnxNode) -> Any:
    if len(node.shape()) != 4:
        raise node.refusal(f"{len(node.shape()) - 2} spatial axes have no form here, only 2")
    # ONNX rounds a nearest position half to even, the BPU half up
    node.only(mode="linear")
    if node.attrs.get("padding_mode", "zeros") == "reflection":
        raise node.refusal("padding_mode='reflection' has no form here")
    return emit(b, node)


register_rewrite("GridSample", _rewrite)
