"""Which values of a graph no input's values decide: parameters, buffers, and what is made of them.
"""

from __future__ import annotations

from torch import fx

from qtune.hbir.example import is_factory


def constant_nodes(graph: fx.Graph) -> frozenset[fx.Node]:
    """Nodes that depend on no input, or on sizes of inputs only."""
    data: set[fx.Node] = set()
    for node in graph.nodes:
        by_shape = node.meta.get("kind") == "size" or is_factory(node) or _asks_shape(node)
        sources = node.all_input_nodes[1:] if by_shape else node.all_input_nodes
        if node.op == "placeholder" or any(source in data for source in sources):
            data.add(node)
    return frozenset(node for node in graph.nodes if node not in data)


def _asks_shape(node: fx.Node) -> bool:
    return node.target is getattr and node.args[1] in ("shape", "ndim", "dtype", "device")
