"""Operators that move integer codes between a QuantizeLinear and its DequantizeLinear.

Some tools move the codes, not the values: QuantizeLinear, Reshape, DequantizeLinear. Moving the
values gives the same numbers and makes the pair a pair again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import onnx
from onnx import helper

from qtune.hbir.onnx_import.graph_view import GraphView, replace_nodes
from qtune.hbir.onnx_import.names import free_name

_MOVERS = (
    "DepthToSpace",
    "Expand",
    "Flatten",
    "Gather",
    "Identity",
    "MaxPool",
    "Reshape",
    "Slice",
    "SpaceToDepth",
    "Split",
    "Squeeze",
    "Tile",
    "Transpose",
    "Unsqueeze",
)
"""Standard operators that hand on elements of their first input, whatever their type."""


@dataclass(slots=True)
class _Plan:
    """What becomes of the codes of one QuantizeLinear.

    ``movers``: nodes that take codes, by their first output. ``dequantizers``: output -> codes.
    """

    movers: dict[str, onnx.NodeProto] = field(default_factory=dict)
    dequantizers: dict[str, str] = field(default_factory=dict)
    grid: tuple[str, ...] = ()


def with_values_moved(proto: onnx.ModelProto) -> onnx.ModelProto:
    """``proto``, changed in place, with values where the file moves codes."""
    view = GraphView(proto.graph)
    taken = {*view.makers, *view.constants, *(info.name for info in proto.graph.input)}
    for node in list(proto.graph.node):
        if node.op_type != "QuantizeLinear" or node.domain:
            continue
        plan = _planned(node, view)
        if plan is not None and plan.movers:
            _apply(proto.graph, node, plan, view, taken)
            view = GraphView(proto.graph)
    return proto


def _planned(node: onnx.NodeProto, view: GraphView) -> _Plan | None:
    """The movers and dequantizers behind ``node``; ``None`` where codes go anywhere else."""
    plan = _Plan(grid=tuple(node.input[1:]))
    queue = [node.output[0]]
    while queue:
        codes = queue.pop()
        users = view.users.get(codes, ())
        if codes in view.results or not all(_takes(user, codes, plan, view) for user in users):
            return None
        queue += [name for user in users if user.output[0] in plan.movers for name in user.output]
    return plan


def _takes(user: onnx.NodeProto, codes: str, plan: _Plan, view: GraphView) -> bool:
    """Enter a user of ``codes`` in the plan; whether it is one that the plan may have."""
    if user.op_type == "DequantizeLinear" and not user.domain:
        plan.dequantizers[user.output[0]] = codes
        return _states(user, plan, view)
    plan.movers[user.output[0]] = user
    return _moves(user, codes)


def _states(node: onnx.NodeProto, plan: _Plan, view: GraphView) -> bool:
    """Whether a DequantizeLinear has the numbers of the QuantizeLinear, one scale for all."""
    if len(node.input) != 1 + len(plan.grid):
        return False
    for ours, theirs in zip(plan.grid, node.input[1:], strict=True):
        a, b = view.array(ours), view.array(theirs)
        if a is None or b is None or a.size != 1 or a.dtype != b.dtype or a.item() != b.item():
            return False
    return True


def _moves(node: onnx.NodeProto, codes: str) -> bool:
    if node.domain or list(node.input).count(codes) != 1 or node.input[0] != codes:
        return False
    attrs: Mapping[str, object] = {
        item.name: helper.get_attribute_value(item) for item in node.attribute
    }
    if node.op_type == "Pad":
        return attrs.get("mode", b"constant") != b"constant"
    if node.op_type == "Resize":
        return attrs.get("mode", b"nearest") == b"nearest"
    return node.op_type in _MOVERS and (node.op_type != "MaxPool" or len(node.output) == 1)


def _apply(
    graph: onnx.GraphProto, first: onnx.NodeProto, plan: _Plan, view: GraphView, taken: set[str]
) -> None:
    codes = first.output[0]
    real = free_name(f"{codes}_values", taken)
    taken.add(real)
    pair = helper.make_node(
        "DequantizeLinear", [codes, *plan.grid], [real], name=f"{first.name}_values"
    )
    renamed = {out: real if name == codes else name for out, name in plan.dequantizers.items()}
    changed = {name for mover in plan.movers.values() for name in mover.output}
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        output = node.output[0] if node.output else ""
        if output in renamed:
            if output in view.results:
                copy = helper.make_node("Identity", [renamed[output]], [output], name=node.name)
                nodes.append(copy)
            continue
        for index, name in enumerate(node.input):
            node.input[index] = renamed.get(name, name)
        if output in plan.movers and node.input[0] == codes:
            node.input[0] = real
        nodes.append(node)
        if output == codes:
            nodes.append(pair)
    replace_nodes(graph, nodes)
    infos = [info for info in graph.value_info if info.name not in changed]
    del graph.value_info[:]
    graph.value_info.extend(infos)
