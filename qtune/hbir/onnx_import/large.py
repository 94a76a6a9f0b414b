"""Large constants stay out of what only looks at the graph: checks and conversions copy a model.

onnx's checker, converter and inliner each write the model out and read it again, so that weights
would be in memory several times over.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import onnx
from onnx import helper

from qtune.hbir.onnx_import.branches import has_control

_LARGE = 1 << 16
"""Bytes of a constant from which on it stays out; no shape, scale or axis is as long."""


@dataclass(frozen=True, slots=True, eq=False)
class Apart:
    """``proto``: a copy of a model in which inputs stand for the large constants ``tensors``."""

    proto: onnx.ModelProto
    tensors: tuple[onnx.TensorProto, ...]
    inputs: frozenset[str]

    def joined(self, proto: onnx.ModelProto) -> onnx.ModelProto:
        """``proto``, which ``self.proto`` has become, changed in place: with the constants."""
        graph = proto.graph
        for index in reversed(range(len(graph.input))):
            if graph.input[index].name in self.inputs:
                del graph.input[index]
        graph.initializer.extend(self.tensors)
        return proto


def apart(source: onnx.ModelProto) -> Apart:
    """Take ``source``, which stays as it is, apart.

    Models with control flow stay whole: branches may see a constant, and it may decide of one.
    """
    graph = source.graph
    results = {info.name for info in graph.output}
    tensors = tuple(
        tensor
        for tensor in (() if has_control(source) else graph.initializer)
        if tensor.ByteSize() >= _LARGE and tensor.name not in results
    )
    proto = _without(source, {tensor.name for tensor in tensors})
    known = {info.name for info in proto.graph.input}
    added = [tensor for tensor in tensors if tensor.name not in known]
    proto.graph.input.extend(
        helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        for tensor in added
    )
    return Apart(proto, tensors, frozenset(tensor.name for tensor in added))


def _without(source: onnx.ModelProto, names: Collection[str]) -> onnx.ModelProto:
    """A copy without the initializers of these names."""
    proto = onnx.ModelProto()
    for model_or_graph, copy in ((source, proto), (source.graph, proto.graph)):
        for field, value in model_or_graph.ListFields():
            if field.name == "initializer":
                copy.initializer.extend(item for item in value if item.name not in names)
            elif field.name == "graph":
                copy.graph.SetInParent()
            elif field.is_repeated:
                getattr(copy, field.name).extend(value)
            else:
                setattr(copy, field.name, value)
    return proto
