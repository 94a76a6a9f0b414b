"""DepthToSpace and SpaceToDepth: reshape, transpose, reshape; both move elements only."""

from __future__ import annotations

from typing import Any

from qtune.hbir.onnx_import.form import OnnxNode, register_rewrite
from qtune.ops.kernel import Builder
from qtune.ops.movement.blocks import emit_shuffle


def _to_space(b: Builder, node: OnnxNode) -> Any:
    _, depth, height, width = _sizes(node)
    side = int(node.attrs["blocksize"])
    channels = depth // side**2
    joined = [0, channels, height * side, width * side]
    if node.attrs.get("mode", "DCR") == "CRD":
        split, order = [0, channels, side, side, height, width], [0, 1, 4, 2, 5, 3]
    else:
        split, order = [0, side, side, channels, height, width], [0, 3, 4, 1, 5, 2]
    return emit_shuffle(b, node.inputs[0], split, order, joined)


def _to_depth(b: Builder, node: OnnxNode) -> Any:
    _, channels, height, width = _sizes(node)
    side = int(node.attrs["blocksize"])
    rows, columns = height // side, width // side
    split = [0, channels, rows, side, columns, side]
    joined = [0, channels * side**2, rows, columns]
    return emit_shuffle(b, node.inputs[0], split, [0, 3, 5, 1, 2, 4], joined)


def _sizes(node: OnnxNode) -> tuple[int, ...]:
    shape = node.shape()
    if len(shape) != 4:
        raise node.refusal(f"the shape {list(shape)} has no form here, only maps NCHW")
    return shape


register_rewrite("DepthToSpace", _to_space)
register_rewrite("SpaceToDepth", _to_depth)
