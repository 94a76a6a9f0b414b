"""Which values of a graph no input decides: parameters, buffers, and what is made of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from qtune.hbir.example import is_factory
from qtune.nn.quantized.op import QuantizedOp


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


def note_constants(graph: fx.Graph, module_at: Callable[[str], Any]) -> None:
    """Tell converted operators that ``graph`` calls which of their operands are constants."""
    constants = constant_nodes(graph)
    for node in graph.nodes:
        module = module_at(str(node.target)) if node.op == "call_module" else None
        if isinstance(module, QuantizedOp):
            operands: list[fx.Node] = []
            fx.map_arg((node.args, node.kwargs), operands.append)
            tensors = [n for n in operands if isinstance(n.meta.get("dtype"), torch.dtype)]
            module.constants = frozenset(i for i, n in enumerate(tensors) if n in constants)
