"""Nodes in the order in which they run, for files of tools that write them in another one."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

import onnx

from qtune.hbir.onnx_import.graph_view import replace_nodes


def put_in_order(graph: onnx.GraphProto) -> None:
    """Put every node of ``graph``, in place, behind those that it reads; else nodes keep their
    order. A graph with a circle stays as it is: onnx's checker names it.
    """
    nodes = list(graph.node)
    maker = {name: place for place, node in enumerate(nodes) for name in node.output if name}
    needs = [{maker[name] for name in _read_by(node) if name in maker} for node in nodes]
    if all(need < place for place, each in enumerate(needs) for need in each):
        return
    users: dict[int, list[int]] = {}
    for place, each in enumerate(needs):
        for need in each:
            users.setdefault(need, []).append(place)
    missing = [len(each) for each in needs]
    ready = [place for place, count in enumerate(missing) if not count]
    found = []
    while ready:
        place = heapq.heappop(ready)
        found.append(nodes[place])
        for user in users.get(place, ()):
            missing[user] -= 1
            if not missing[user]:
                heapq.heappush(ready, user)
    if len(found) == len(nodes):
        replace_nodes(graph, found)


def _read_by(node: onnx.NodeProto) -> Iterator[str]:
    """Tensors that ``node`` reads, those of its own graphs included."""
    yield from node.input
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            for inner in graph.node:
                yield from _read_by(inner)
            yield from (info.name for info in graph.output)
