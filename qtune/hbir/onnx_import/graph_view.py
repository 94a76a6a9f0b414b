"""What a graph of protobuf nodes says of its tensors, and small changes of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

Array = np.ndarray[Any, Any]


class GraphView:
    """Tensors of a graph, looked up once.

    ``constants``: tensors by name; ``makers``: node by output; ``users``: nodes by input;
    ``results``: names of the graph's outputs.
    """

    def __init__(self, graph: onnx.GraphProto) -> None:
        self.constants = constant_tensors(graph)
        self.makers = {name: node for node in graph.node for name in node.output}
        self.results = {info.name for info in graph.output}
        self.users: dict[str, list[onnx.NodeProto]] = {}
        for node in graph.node:
            for name in node.input:
                self.users.setdefault(name, []).append(node)
        self._ranks = {
            info.name: len(info.type.tensor_type.shape.dim)
            for info in (*graph.value_info, *graph.input, *graph.output)
            if info.type.tensor_type.HasField("shape")
        }

    def array(self, name: str) -> Array | None:
        """The constant ``name``."""
        tensor = self.constants.get(name)
        return None if tensor is None else numpy_helper.to_array(tensor)

    def rank(self, name: str) -> int | None:
        """How many dimensions the tensor has, where the file says so."""
        tensor = self.constants.get(name)
        return self._ranks.get(name) if tensor is None else len(tensor.dims)


def constant_tensors(graph: onnx.GraphProto) -> dict[str, onnx.TensorProto]:
    """Tensors of all constants by name: initializers and Constant nodes."""
    found = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant" and not node.domain and node.attribute:
            found[node.output[0]] = _constant_of(node)
    return found


def _constant_of(node: onnx.NodeProto) -> onnx.TensorProto:
    attribute = node.attribute[0]
    if attribute.name == "value":
        tensor: onnx.TensorProto = attribute.t
        return tensor
    value = helper.get_attribute_value(attribute)
    dtype = np.float32 if "float" in attribute.name else np.int64
    return numpy_helper.from_array(np.asarray(value, dtype))


def replace_nodes(graph: onnx.GraphProto, nodes: Sequence[onnx.NodeProto]) -> None:
    """Make ``nodes``, some of them the graph's own, the nodes of ``graph``."""
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(copies)


def drop_unused_initializers(graph: onnx.GraphProto) -> None:
    """Remove initializers that no node takes and that are no output."""
    wanted = {name for node in graph.node for name in node.input}
    wanted.update(info.name for info in graph.output)
    for index in reversed(range(len(graph.initializer))):
        if graph.initializer[index].name not in wanted:
            del graph.initializer[index]
