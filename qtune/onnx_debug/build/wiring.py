"""Who makes and who reads each tensor of a model, and which nodes join into one operator."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import onnx

from qtune.onnx_debug.build.facts import Kind, NodeFacts
from qtune.ops.spec import FuseRole

_ORDER = (FuseRole.GEMM, FuseRole.BN, FuseRole.ADD, FuseRole.RELU)
"""The order in which operators join (toolchain_facts 7.3)."""

Slot = tuple[str, int]
"""A node and the index of one of its inputs."""


@dataclass(slots=True)
class Wiring:
    """``maker``: tensor -> node; ``slots``: tensor -> its readers; ``order``: node -> position.

    ``constants``: names of initializers, ``numbers``: those of one element.
    """

    maker: dict[str, str] = field(default_factory=dict)
    slots: dict[str, list[Slot]] = field(default_factory=dict)
    nodes: dict[str, onnx.NodeProto] = field(default_factory=dict)
    order: dict[str, int] = field(default_factory=dict)
    outputs: tuple[str, ...] = ()
    constants: frozenset[str] = frozenset()
    numbers: frozenset[str] = frozenset()
    shapes: dict[str, tuple[object, ...]] = field(default_factory=dict)


def wiring_of(graph: onnx.GraphProto) -> Wiring:
    """The wiring of a graph without subgraphs that read tensors from outside."""
    found = Wiring(outputs=tuple(info.name for info in graph.output))
    found.constants = frozenset(tensor.name for tensor in graph.initializer)
    found.numbers = frozenset(t.name for t in graph.initializer if math.prod(t.dims) == 1)
    for position, node in enumerate(graph.node):
        found.nodes[node.name] = node
        found.order[node.name] = position
        found.maker.update({name: node.name for name in node.output if name})
        for index, name in enumerate(node.input):
            if name:
                found.slots.setdefault(name, []).append((node.name, index))
    for info in (*graph.input, *graph.value_info, *graph.output):
        dims = info.type.tensor_type.shape.dim
        found.shapes[info.name] = tuple(d.dim_param or d.dim_value for d in dims)
    return found


def fused_links(
    wiring: Wiring, facts: Mapping[str, NodeFacts], floats: Collection[str]
) -> dict[str, str]:
    """Tensors inside a fused group -> the group's first node.

    A GEMM or sum takes the batch norm, sum and clamp behind it into its one rounding, in this
    order, where nobody else reads what is between; so do the nodes that one table computes.
    """
    heads: dict[str, str] = {}
    found: dict[str, str] = {}
    joined: set[str] = set()
    for name in sorted(wiring.nodes, key=wiring.order.__getitem__):
        fact = facts[name]
        if fact.kind is Kind.JOINED and name not in floats:
            first = next((found[t] for t in wiring.nodes[name].input if t in found), name)
            found[wiring.nodes[name].output[0]] = first
        if name in floats or fact.fuse is None or fact.kind not in (Kind.INTEGER, Kind.PASSING):
            continue
        candidates = [
            tensor
            for tensor in dict.fromkeys(wiring.nodes[name].input)
            if _joins(wiring, facts, tensor, name, heads)
        ]
        if candidates:
            tensor = max(candidates, key=lambda item: wiring.order[wiring.maker[item]])
            found[tensor] = heads[name] = heads[wiring.maker[tensor]]
            joined.add(name)
        elif fact.kind is Kind.INTEGER:
            heads[name] = name
    return found


def _joins(
    wiring: Wiring,
    facts: Mapping[str, NodeFacts],
    tensor: str,
    name: str,
    heads: Mapping[str, str],
) -> bool:
    maker = wiring.maker.get(tensor, "")
    if maker not in heads or wiring.slots[tensor] != [(name, _index(wiring, name, tensor))]:
        return False
    if tensor in wiring.outputs:
        return False
    before, after = facts[maker].fuse, facts[name].fuse
    if facts[maker].is_bias and heads[maker] != maker:
        before = FuseRole.GEMM
    if before is None or after is None or after is FuseRole.GEMM:
        return False
    same = wiring.shapes.get(tensor) == wiring.shapes.get(wiring.nodes[name].output[0])
    others = [item for item in wiring.nodes[name].input if item != tensor]
    is_gemm_sum = after is not FuseRole.ADD or (
        facts[heads[maker]].is_gemm and (facts[name].is_bias or wiring.constants.isdisjoint(others))
    )
    return _ORDER.index(before) < _ORDER.index(after) and same and is_gemm_sum


def _index(wiring: Wiring, name: str, tensor: str) -> int:
    return list(wiring.nodes[name].input).index(tensor)
