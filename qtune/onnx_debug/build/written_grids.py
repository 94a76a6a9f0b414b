"""Grids that a file writes with plain operators: ``clip(floor(x / scale + 0.5)) * scale``.

``export_to_onnx`` writes int16 activations like this, which QuantizeLinear has since opset 21 only.
They become the calibration nodes that compute the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx

from qtune.hbir import hz_calibration
from qtune.hbir.hz_calibration import BITS, Calibration
from qtune.hbir.onnx_import.graph_view import (
    GraphView,
    drop_unused_initializers,
    replace_nodes,
)

Array = np.ndarray[Any, Any]

_CHAIN = ("Clip", "Floor", "Add", "Div")
"""The operators before the last one, a Mul, from it on backwards."""

_LIMITS: Mapping[tuple[float, float], int] = {
    (-float(1 << (bits - 1)), float((1 << (bits - 1)) - 1)): bits for bits in BITS
}


def with_calibrations_named(proto: onnx.ModelProto) -> onnx.ModelProto:
    """``proto``, changed in place, with a calibration node for each such chain of one scale.

    The node has the name of the chain's last operator, and gives its result.
    """
    view = GraphView(proto.graph)
    made = {}
    for node in proto.graph.node:
        found = _calibration(node, view) if node.op_type == "Mul" and not node.domain else None
        if found is not None:
            made[node.output[0]] = found
    if not made:
        return proto
    nodes = [made.get(node.output[0] if node.output else "", node) for node in proto.graph.node]
    wanted = {name for node in nodes for name in node.input} | view.results
    while True:  # the rest of the chains, from their ends on
        left = [node for node in nodes if wanted.intersection(node.output)]
        wanted = {name for node in left for name in node.input} | view.results
        if len(left) == len(nodes):
            break
        nodes = left
    replace_nodes(proto.graph, nodes)
    drop_unused_initializers(proto.graph)
    return proto


def _calibration(last: onnx.NodeProto, view: GraphView) -> onnx.NodeProto | None:
    scale = _number(view, last, 1)
    chain = [last]
    for op_type in _CHAIN:
        before = view.makers.get(chain[-1].input[0])
        is_next = before is not None and before.op_type == op_type and not before.domain
        if before is None or not is_next or len(view.users[before.output[0]]) > 1:
            return None
        if before.output[0] in view.results:
            return None
        chain.append(before)
    _, clip, _, add, div = chain
    low, high = _number(view, clip, 1), _number(view, clip, 2)
    bits = _LIMITS.get((low or 0.0, high or 0.0))
    if scale is None or bits is None or _number(view, add, 1) != 0.5:
        return None
    if _number(view, div, 1) != scale or scale <= 0:
        return None
    scales = np.asarray([scale], np.float32)
    thresholds = (scales * np.float32(1 << (bits - 1))).astype(np.float32)
    held = Calibration(scales, thresholds, bits)
    return hz_calibration.make_node(last.name, div.input[0], last.output[0], held)


def _number(view: GraphView, node: onnx.NodeProto, index: int) -> float | None:
    array = view.array(node.input[index]) if index < len(node.input) else None
    return float(array.reshape(())) if array is not None and array.size == 1 else None
