"""Operators of onnxruntime's own domain as the standard operators that they stand for.

onnxruntime's optimizer writes them: files that it saved have them where the source had several
nodes. Their definitions are those of onnxruntime's operator list (ContribOperators).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from qtune.hbir.onnx_import.graph_view import replace_nodes
from qtune.hbir.onnx_import.names import free_name

DOMAIN = "com.microsoft"


def with_standard_nodes(proto: onnx.ModelProto) -> onnx.ModelProto:
    """``proto``, changed in place: nodes of onnxruntime's domain that have a standard form."""
    graph = proto.graph
    if not any(node.domain == DOMAIN and node.op_type in _FORMS for node in graph.node):
        return proto
    names = {name for node in graph.node for name in (node.name, *node.input, *node.output)}
    made: list[onnx.NodeProto] = []
    for node in graph.node:
        form = _FORMS.get(node.op_type) if node.domain == DOMAIN else None
        if form is None:
            made.append(node)
            continue
        chain = _Chain(node, names)
        form(chain)
        made += chain.nodes
        graph.initializer.extend(chain.constants)
    replace_nodes(graph, made)
    return proto


class _Chain:
    """The standard nodes of ``node``; the last one has its name, all are called after it."""

    def __init__(self, node: onnx.NodeProto, names: set[str]) -> None:
        self.node, self.names = node, names
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.attrs: dict[str, Any] = {
            item.name: helper.get_attribute_value(item) for item in node.attribute
        }

    def input(self, index: int) -> str:
        """The tensor of input ``index``; empty where it is left out."""
        return self.node.input[index] if index < len(self.node.input) else ""

    def add(self, op_type: str, inputs: list[str], output: str = "", **attrs: Any) -> str:
        """Append a node; ``output``: an output of the source node, else a new tensor."""
        is_last = output == self.node.output[0]
        name = self.node.name if is_last else self._free(f"{self.node.name}_{op_type}")
        output = output or name
        self.nodes.append(helper.make_node(op_type, inputs, [output], name=name, **attrs))
        return output

    def number(self, value: float) -> str:
        """A constant of one element."""
        name = self._free(f"{self.node.name}_number")
        self.constants.append(numpy_helper.from_array(np.array(value, dtype=np.float32), name))
        return name

    def plus(self, x: str, index: int) -> str:
        """``x`` and input ``index``, where that is given."""
        return self.add("Add", [x, self.input(index)]) if self.input(index) else x

    def _free(self, base: str) -> str:
        name = free_name(base, self.names)
        self.names.add(name)
        return name


def _gelu(approximate: str) -> Callable[[_Chain], None]:
    def form(chain: _Chain) -> None:
        x = chain.plus(chain.input(0), 1)
        chain.add("Gelu", [x], chain.node.output[0], approximate=approximate)

    return form


def _quick_gelu(chain: _Chain) -> None:
    factor = chain.number(float(chain.attrs.get("alpha", 1.702)))
    weight = chain.add("Sigmoid", [chain.add("Mul", [chain.input(0), factor])])
    chain.add("Mul", [chain.input(0), weight], chain.node.output[0])


def _fused_mat_mul(chain: _Chain) -> None:
    alpha, output = float(chain.attrs.get("alpha", 1.0)), chain.node.output[0]
    inputs = [
        chain.add("Einsum", [chain.input(index)], equation="...ij->...ji")
        if chain.attrs.get(key, 0)
        else chain.input(index)
        for index, key in enumerate(("transA", "transB"))
    ]
    if alpha == 1.0:
        chain.add("MatMul", inputs, output)
    else:
        chain.add("Mul", [chain.add("MatMul", inputs), chain.number(alpha)], output)


def _skip_layer_norm(chain: _Chain) -> None:
    outputs = chain.node.output
    total = chain.plus(chain.add("Add", [chain.input(0), chain.input(1)]), 4)
    if len(outputs) > 3 and outputs[3]:
        total = chain.add("Identity", [total], outputs[3])
    inputs = [total, chain.input(2), *([chain.input(3)] if chain.input(3) else [])]
    epsilon = float(chain.attrs.get("epsilon", 1e-12))
    chain.add("LayerNormalization", inputs, outputs[0], axis=-1, epsilon=epsilon)


_FORMS: Mapping[str, Callable[[_Chain], None]] = MappingProxyType(
    {
        "Gelu": _gelu("none"),
        "BiasGelu": _gelu("none"),
        "FastGelu": _gelu("tanh"),
        "QuickGelu": _quick_gelu,
        "FusedMatMul": _fused_mat_mul,
        "SkipLayerNormalization": _skip_layer_norm,
    }
)
