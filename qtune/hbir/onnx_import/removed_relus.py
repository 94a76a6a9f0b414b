"""Relus that a quantizer took out of a file, put back for the float form.

onnxruntime's quantizer drops a Relu in front of a QuantizeLinear whose lowest code means 0: the
clamp does its work. The integers don't miss it, but a float model without it is another model.
"""

from __future__ import annotations

from collections.abc import Collection

import onnx
from onnx import helper

from qtune.hbir.onnx_import.graph_view import GraphView, replace_nodes
from qtune.hbir.onnx_import.names import free_name
from qtune.hbir.onnx_import.pairs import Pair, pairs

_NEVER_NEGATIVE = ("Abs", "Exp", "HardSigmoid", "Relu", "Sigmoid", "Softmax", "Softplus", "Sqrt")
_BY_THE_FIRST = (
    "AveragePool",
    "Flatten",
    "GlobalAveragePool",
    "GlobalMaxPool",
    "Identity",
    "MaxPool",
    "ReduceMean",
    "Reshape",
    "Squeeze",
    "Transpose",
    "Unsqueeze",
)
"""Operators whose results are none below 0 if their first input has none."""
_BY_ALL = ("Add", "Concat", "Mul")
"""The same of all inputs."""


def with_relus_back(proto: onnx.ModelProto) -> onnx.ModelProto:
    """``proto``, changed in place, with a Relu before each pair whose range starts at exactly 0.

    Such a range was chosen for a tensor without values below 0, which a Relu leaves as it is; and
    what is quantized does not change either. None is added where no value can be below 0 anyway,
    nor to constants and graph inputs, before which no Relu can have been. The Relu takes the
    tensor's name (what makes it gets another one) where nothing else reads the tensor.
    """
    view = GraphView(proto.graph)
    made = view.makers.keys() - view.constants.keys()
    wanting = [p for p in pairs(proto.graph) if p.starts_at_zero and p.source in made]
    positive = _never_negative(proto.graph, {pair.output for pair in wanting})
    found: dict[str, list[Pair]] = {}
    for pair in wanting:
        if pair.source not in positive:
            found.setdefault(pair.source, []).append(pair)
    if not found:
        return proto
    tensors = {*view.makers, *view.constants, *(info.name for info in proto.graph.input)}
    names = {node.name for node in proto.graph.node}
    behind: dict[str, onnx.NodeProto] = {}
    for tensor, readers in found.items():
        relu = _relu(tensor, readers, view, tensors, names)
        behind[relu.input[0]] = relu
    nodes = []
    for node in proto.graph.node:
        nodes.append(node)
        nodes += [behind[name] for name in node.output if name in behind]
    replace_nodes(proto.graph, nodes)
    return proto


def _relu(
    tensor: str, readers: list[Pair], view: GraphView, tensors: set[str], names: set[str]
) -> onnx.NodeProto:
    """The node; what makes or reads ``tensor`` is changed to fit."""
    quantizers = [pair.quantize for pair in readers if pair.quantize is not None]
    is_alone = tensor not in view.results and all(
        any(user is node for node in quantizers) for user in view.users[tensor]
    )
    if is_alone:
        source, result = free_name(f"{tensor}_before_relu", tensors), tensor
        maker = view.makers[tensor]
        maker.output[list(maker.output).index(tensor)] = source
    else:
        source, result = tensor, free_name(f"{tensor}_relu", tensors)
        for node in quantizers:
            node.input[0] = result
    name = free_name(f"{tensor}_Relu", names)
    tensors |= {source, result}
    names.add(name)
    return helper.make_node("Relu", [source], [result], name=name)


def _never_negative(graph: onnx.GraphProto, one_sided: Collection[str]) -> set[str]:
    """Tensors that can't be below 0 in float; ``one_sided``: outputs of pairs that get a Relu."""
    found: set[str] = set()
    for node in graph.node:
        if node.domain or not node.output:
            continue
        is_positive = (
            node.output[0] in one_sided
            or node.op_type in _NEVER_NEGATIVE
            or (node.op_type in _BY_THE_FIRST and node.input[0] in found)
            or (node.op_type in _BY_ALL and found.issuperset(node.input))
        )
        if is_positive:
            found.add(node.output[0])
    return found
