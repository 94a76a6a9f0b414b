"""Control flow: an If whose condition is constant is the branch that it takes."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnx_ir.passes.common as passes
from onnx import shape_inference

from qtune.errors import OnnxImportError
from qtune.hbir.domain import OPSET
from qtune.hbir.onnx_import.evaluate import Array, evaluated, is_decided

CONTROL = ("If", "Loop", "Scan")


def has_control(proto: onnx.ModelProto) -> bool:
    """Whether the graph has operators that run graphs of their own."""
    return any(node.op_type in CONTROL and not node.domain for node in proto.graph.node)


def with_branches_taken(proto: onnx.ModelProto) -> onnx.ModelProto:
    """``proto`` with the branch that runs in place of each If whose condition is constant."""
    if not has_control(proto):
        return proto
    model = ir.from_proto(shape_inference.infer_shapes(proto, data_prop=True))
    if not take_branches(model):
        return proto
    return ir.to_proto(passes.NameFixPass()(model).model)


def refuse_control(proto: onnx.ModelProto) -> None:
    """Raise ``OnnxImportError`` naming every operator of control flow."""
    found = [n for n in proto.graph.node if n.op_type in CONTROL and not n.domain]
    if found:
        lines = "".join(f"\n  - {refusal(node.op_type, node.name)}" for node in found)
        raise OnnxImportError(f"{len(found)} operator(s) of control flow can't be taken:{lines}")


def refusal(op_type: str, name: str) -> str:
    """Why an operator of control flow is not taken."""
    reason = (
        "its condition is computed while the model runs"
        if op_type == "If"
        else "a loop has no form here"
    )
    return (
        f"{name}: {op_type}: {reason}. Export the model with fixed sizes and without data-"
        "dependent control flow, or simplify it first"
    )


def take_branches(model: ir.Model) -> bool:
    """Replace, in place, each If whose condition is constant; whether there was one."""
    found = False
    while True:
        known: dict[ir.Value, Array | None] = {}
        opset = model.graph.opset_imports.get("", OPSET)
        decided = [
            (node, condition)
            for node in model.graph
            if node.op_type == "If" and not node.domain
            if (condition := _constant(node.inputs[0], opset, known)) is not None
        ]
        if not decided:
            return found
        found = True
        for node, condition in decided:
            _take(model.graph, node, bool(np.asarray(condition).reshape(-1)[0]))


def _constant(
    value: ir.Value | None, opset: int, known: dict[ir.Value, Array | None]
) -> Array | None:
    """The array that constants decide, computed back to them."""
    if value is None:
        return None
    if value.const_value is not None:
        return value.const_value.numpy()
    if value not in known:
        known[value] = None
        node = value.producer()
        if node is not None and node.domain in ("", "ai.onnx"):

            def data_of(source: ir.Value) -> Array | None:
                return _constant(source, opset, known)

            if is_decided(node, data_of):
                known[value] = evaluated(node, opset, data_of)[node.outputs.index(value)]
    return known[value]


def _take(graph: ir.Graph, node: ir.Node, condition: bool) -> None:
    branch = node.attributes["then_branch" if condition else "else_branch"].as_graph()
    for key in list(branch.initializers):
        value = branch.initializers.pop(key)
        if key in graph.initializers:
            value.name = f"{node.name}/{key}"
        graph.initializers.add(value)
    results = list(branch.outputs)
    branch.outputs.clear()
    for inner in list(branch):
        branch.remove(inner)
        inner.name = inner.name or f"{node.name}/{inner.op_type}"
        graph.insert_before(node, inner)
    for outer, result in zip(node.outputs, results, strict=True):
        copy = ir.Node("", "Identity", [result], num_outputs=1, name=f"{node.name}/{outer.name}")
        graph.insert_before(node, copy)
        made = copy.outputs[0]
        made.name, made.shape, made.type = outer.name, outer.shape, outer.type
        outer.name = f"{outer.name}/taken"
        outer.replace_all_uses_with(made, replace_graph_outputs=True)
    graph.remove(node, safe=True)
