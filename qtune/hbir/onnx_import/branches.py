"""Control flow: an If whose condition is constant is the branch that it takes."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnx_ir.passes.common as passes
from onnx import shape_inference

from qtune.errors import OnnxImportError
from qtune.hbir.domain import OPSET
from qtune.hbir.onnx_import.evaluate import SIZES, Array, evaluated, is_decided
from qtune.hbir.onnx_import.names import free_name

CONTROL = ("If", "Loop", "Scan")


def has_control(proto: onnx.ModelProto) -> bool:
    """Whether the graph has operators that run graphs of their own."""
    return any(
        node.op_type in CONTROL and node.domain in ("", "ai.onnx") for node in proto.graph.node
    )


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
    if not has_control(proto):
        return
    found = [node for node in ir.from_proto(proto).graph if is_control(node)]
    lines = "".join(f"\n  - {refusal(node, node.name or '')}" for node in found)
    raise OnnxImportError(f"{len(found)} operator(s) of control flow can't be taken:{lines}")


def is_control(node: ir.Node) -> bool:
    """Whether ``node`` runs graphs of its own."""
    return node.op_type in CONTROL and node.domain in ("", "ai.onnx")


def refusal(node: ir.Node, name: str) -> str:
    """Why ``node``, an operator of control flow called ``name``, is not taken, and what helps."""
    if node.op_type != "If":
        return f"{name}: {node.op_type}: a loop has no form here. Export the model without loops"
    inputs = _inputs_behind(node.inputs[0])
    if not inputs:
        return (
            f"{name}: If: its condition is computed while the model runs. Export the model with "
            "fixed sizes and without data-dependent control flow, or simplify it first"
        )
    names = ", ".join(inputs)
    return (
        f"{name}: If: its condition is computed while the model runs, from the input(s) {names}. "
        "An input that always has the same value can be made a constant: give the model an "
        "initializer of its name in place of the input. Else export the model without it"
    )


def _inputs_behind(value: ir.Value | None) -> list[str]:
    """The graph inputs whose elements decide ``value``; their sizes alone do not count."""
    found: dict[str, None] = {}
    seen: set[ir.Value] = set()
    waiting = [value]
    while waiting:
        current = waiting.pop()
        if current is None or current in seen:
            continue
        seen.add(current)
        node = current.producer()
        if node is not None:
            waiting += [] if node.op_type in SIZES else node.inputs
        elif current.is_graph_input() and not current.is_initializer():
            found[current.name or ""] = None
    return list(found)


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
    taken = {other.name or "" for other in graph}
    for inner in list(branch):
        branch.remove(inner)
        inner.name = free_name(inner.name or f"{node.name}/{inner.op_type}", taken)
        taken.add(inner.name)
        graph.insert_before(node, inner)
    for outer, result in zip(node.outputs, results, strict=True):
        copy = ir.Node("", "Identity", [result], num_outputs=1, name=f"{node.name}/{outer.name}")
        graph.insert_before(node, copy)
        made = copy.outputs[0]
        made.name, made.shape, made.type = outer.name, outer.shape, outer.type
        outer.name = f"{outer.name}/taken"
        outer.replace_all_uses_with(made, replace_graph_outputs=True)
    graph.remove(node, safe=True)
