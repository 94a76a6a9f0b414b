"""Operators that onnxruntime's tools write, as the standard operators that they stand for.

Its optimizer joins nodes to operators of its own domain, whose definitions are those of its
operator list (ContribOperators); its quantizer writes operators on codes.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import onnx
from onnx import defs

from qtune.errors import OnnxImportError
from qtune.hbir.onnx_import.code_operators import CODE_FORMS
from qtune.hbir.onnx_import.graph_view import constant_tensors, replace_nodes
from qtune.hbir.onnx_import.node_chain import DOMAIN, Form, NodeChain

UNOPTIMIZED = (
    "Save the model without onnxruntime's optimizations (SessionOptions.graph_optimization_level), "
    "or take the file that it was made from"
)
"""What helps where onnxruntime's optimizer wrote something else."""

_SUMMAND = 3
"""The input of a fused convolution that is added before the activation."""

_ACTIVATIONS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "Identity": (),
        "Relu": (),
        "Sigmoid": (),
        "Tanh": (),
        "Clip": (),
        "LeakyRelu": ("alpha",),
        "HardSigmoid": ("alpha", "beta"),
    }
)
"""Activations that are fused, with the attributes that their parameters are."""


def with_standard_nodes(proto: onnx.ModelProto) -> onnx.ModelProto:
    """``proto``, changed in place, with standard nodes for those that have such a form."""
    graph = proto.graph
    if not any((node.domain, node.op_type) in _FORMS for node in graph.node):
        return proto
    names = {name for node in graph.node for name in (node.name, *node.input, *node.output)}
    constants = constant_tensors(graph)
    made: list[onnx.NodeProto] = []
    for node in graph.node:
        form = _FORMS.get((node.domain, node.op_type))
        if form is None:
            made.append(node)
            continue
        chain = NodeChain(node, names, constants)
        form(chain)
        made += chain.nodes
        graph.initializer.extend(chain.constants)
    replace_nodes(graph, made)
    return proto


def _gelu(approximate: str) -> Form:
    def form(chain: NodeChain) -> None:
        x = chain.plus(chain.needed(0), 1)
        chain.add("Gelu", [x], chain.node.output[0], approximate=approximate)

    return form


def _quick_gelu(chain: NodeChain) -> None:
    factor = chain.number(float(chain.attrs.get("alpha", 1.702)))
    weight = chain.add("Sigmoid", [chain.add("Mul", [chain.needed(0), factor])])
    chain.add("Mul", [chain.input(0), weight], chain.node.output[0])


def _fused_mat_mul(chain: NodeChain) -> None:
    alpha, output = float(chain.attrs.get("alpha", 1.0)), chain.node.output[0]
    inputs = [
        chain.add("Einsum", [chain.needed(index)], equation="...ij->...ji")
        if chain.attrs.get(key, 0)
        else chain.needed(index)
        for index, key in enumerate(("transA", "transB"))
    ]
    if alpha == 1.0:
        chain.add("MatMul", inputs, output)
    else:
        chain.add("Mul", [chain.add("MatMul", inputs), chain.number(alpha)], output)


def _fused(op_type: str) -> Form:
    """A convolution or Gemm with the activation behind it."""

    def form(chain: NodeChain) -> None:
        own = defs.get_schema(op_type).attributes
        attrs = {key: value for key, value in chain.attrs.items() if key in own}
        inputs = [name for name in chain.node.input[:3] if name]
        _activate(chain, chain.plus(chain.add(op_type, inputs, **attrs), _SUMMAND))

    return form


def _activate(chain: NodeChain, x: str) -> None:
    name = chain.attrs.get("activation", b"Identity").decode() or "Identity"
    if name not in _ACTIVATIONS:
        raise OnnxImportError(
            f"{chain.node.name}: {chain.node.op_type} with {name} has no form here. {UNOPTIMIZED}"
        )
    given = [float(value) for value in chain.attrs.get("activation_params", ())]
    output = chain.node.output[0]
    if name == "Clip":
        chain.add("Clip", [x, *map(chain.number, given)], output)
        return
    attrs: dict[str, Any] = dict(zip(_ACTIVATIONS[name], given, strict=False))
    for key in _ACTIVATIONS[name]:  # Gemm states each of them
        if f"activation_{key}" in chain.attrs:
            attrs[key] = chain.attrs[f"activation_{key}"]
    chain.add(name, [x], output, **attrs)


def _skip_layer_norm(chain: NodeChain) -> None:
    outputs = chain.node.output
    total = chain.plus(chain.add("Add", [chain.needed(0), chain.needed(1)]), 4)
    if len(outputs) > 3 and outputs[3]:
        total = chain.add("Identity", [total], outputs[3])
    inputs = [total, chain.needed(2), *([chain.input(3)] if chain.input(3) else [])]
    epsilon = float(chain.attrs.get("epsilon", 1e-12))
    chain.add("LayerNormalization", inputs, outputs[0], axis=-1, epsilon=epsilon)


_OWN: Mapping[str, Form] = MappingProxyType(
    {
        "Gelu": _gelu("none"),
        "BiasGelu": _gelu("none"),
        "FastGelu": _gelu("tanh"),
        "FusedConv": _fused("Conv"),
        "FusedGemm": _fused("Gemm"),
        "FusedMatMul": _fused_mat_mul,
        "QuickGelu": _quick_gelu,
        "SkipLayerNormalization": _skip_layer_norm,
    }
)

_FORMS: Mapping[tuple[str, str], Form] = MappingProxyType(
    {**{(DOMAIN, name): form for name, form in _OWN.items()}, **CODE_FORMS}
)
"""By domain and operator."""
