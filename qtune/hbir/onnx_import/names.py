"""Unique names: whatever is shown, switched or compared of a model is told apart by its name."""

from __future__ import annotations

import itertools
from collections.abc import Collection

import onnx


def with_unique_names(proto: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of ``proto`` with unique names of nodes, as :func:`name_nodes` gives them."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    name_nodes(copy.graph)
    return copy


def name_nodes(graph: onnx.GraphProto) -> None:
    """Give each node, in place, a name of its own; names that are unique already stay.

    A node without a name is called ``<op type>_<index in the graph>``; the second node of a name
    gets the suffix ``_1``, and so on. Tensors keep their names: ONNX demands that they are unique.
    A node without a name in a branch is called ``<name of the If>/<op type>``.
    """
    given = [node.name for node in graph.node if node.name]
    taken: set[str] = set()
    for index, node in enumerate(graph.node):
        if node.name and node.name not in taken:
            taken.add(node.name)
            continue
        base = node.name or f"{node.op_type}_{index}"
        node.name = free_name(base, taken.union(given))
        taken.add(node.name)
    _name_inner(graph)


def _name_inner(graph: onnx.GraphProto) -> None:
    for node in graph.node:
        for inner in (attribute.g for attribute in node.attribute if attribute.HasField("g")):
            for part in inner.node:
                part.name = part.name or f"{node.name}/{part.op_type}"
            _name_inner(inner)


def free_name(base: str, taken: Collection[str]) -> str:
    """``base``, or the first of ``base_1``, ``base_2``, ... that is not taken."""
    if base not in taken:
        return base
    return next(name for i in itertools.count(1) if (name := f"{base}_{i}") not in taken)
