"""remove_io_op, remove_attached_op, erase: what host code does instead of the module.

An operator can be removed from an input if it is all that uses the input, and from an output if it
makes it; it must have one tensor in and one out besides constants.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx_ir as ir

from qtune.errors import ArgumentError
from qtune.hbir.argument import META_REMOVED, Argument, Removal, check_alive, unknown_choice
from qtune.hbir.builder import (
    META_DTYPE,
    META_OP,
    META_RANGE,
    META_RESULT,
    META_SCALE,
    META_STAGE,
)
from qtune.hbir.module import Function
from qtune.hbir.passes.edit import renew_functions
from qtune.hbir.passes.ports import replace_argument
from qtune.hbir.verify import verify

REMOVABLE: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "Quantize": frozenset({"Quantize", "QuantizeHalfEven"}),
        "Dequantize": frozenset({"Dequantize", "DequantizeAcc"}),
        "Transpose": frozenset({"Transpose"}),
        "Cast": frozenset({"Cast"}),
        "Reshape": frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze"}),
        "Softmax": frozenset({"Softmax"}),
    }
)
"""Documented type -> HBIR operators."""
NOT_DONE = ("FilterCopy", "RlePostProcess")
_PASSING = frozenset({"Identity", "Barrier"})
"""Operators without effect; what lies behind them counts, and they go with it."""


def attached(argument: Argument) -> list[ir.Node]:
    """The nodes that use an input, or the node that makes an output; identities don't count."""
    check_alive(argument)
    value = argument.value
    while True:
        nodes = _users(value) if argument.kind == "inputs" else _makers(value)
        if len(nodes) != 1 or nodes[0].op_type not in _PASSING:
            return nodes
        (node,) = nodes
        behind = node.outputs[0] if argument.kind == "inputs" else node.inputs[0]
        if behind is None or behind.is_graph_output() or behind.const_value is not None:
            return nodes
        value = behind


def _users(value: ir.Value) -> list[ir.Node]:
    return list(dict.fromkeys(use.node for use in value.uses()))


def _makers(value: ir.Value) -> list[ir.Node]:
    maker = value.producer()
    return [] if maker is None else [maker]


def removable(argument: Argument) -> Removal:
    """Whether the one operator on an argument can go."""
    nodes = attached(argument)
    if len(nodes) != 1:
        return Removal(False, f"{argument.name}: {len(nodes)} operators are attached, not one")
    node = nodes[0]
    if not any(node.op_type in names for names in REMOVABLE.values()):
        known = ", ".join(REMOVABLE)
        return Removal(False, f"{node.name}: {node.op_type} is none of {known}")
    if argument.kind == "inputs" and argument.value.is_graph_output():
        return Removal(False, f"{argument.name} is an output as well")
    moving = [v for v in node.inputs if v is not None and v.const_value is None]
    if len(moving) != 1 or len(node.outputs) != 1:
        return Removal(False, f"{node.name} has more than one tensor in or out")
    other = node.outputs[0] if argument.kind == "inputs" else moving[0]
    if other.is_graph_input() or other.is_graph_output():
        return Removal(False, f"{node.name} is all that lies between an input and an output")
    return Removal(True)


def remove_attached(argument: Argument) -> Removal:
    """Remove the one operator on an argument."""
    verdict = removable(argument)
    if verdict:
        _remove(argument, attached(argument)[0])
        _finish(argument.function)
    return verdict


def remove_io_op(
    function: Function, op_types: Sequence[str] | None, op_names: Sequence[str] | None
) -> list[str]:
    """Remove operators from inputs and outputs; return the names of the removed nodes.

    Goes on while an argument has another one of the wanted kind.
    """
    function.check_editable()
    types, names = _texts("op_types", op_types), _texts("op_names", op_names)
    if types is None and names is None:
        raise ArgumentError(
            f"remove_io_op: say what to remove: op_types (of {', '.join(REMOVABLE)}) or op_names"
        )
    wanted = _operators(types or ())
    _check_names(function, names or ())
    removed: list[str] = []
    for kind in ("inputs", "outputs"):
        count = len(getattr(function, kind))
        for index in range(count):
            while (node := _next(function, kind, index, wanted, names)) is not None:
                removed.append(node.name or "")
                _remove(getattr(function, kind)[index], node)
    _check_all_gone(names or (), removed, function)
    _finish(function)
    return removed


def _texts(name: str, given: Sequence[str] | None) -> tuple[str, ...] | None:
    if given is None:
        return None
    if isinstance(given, str) or not all(isinstance(item, str) for item in given):
        raise ArgumentError(f"remove_io_op: {name} must be a list of texts, got {given!r}")
    return tuple(given)


def _operators(types: Sequence[str]) -> frozenset[str]:
    found: set[str] = set()
    for name in types:
        if name in NOT_DONE:
            raise NotImplementedError(f"remove_io_op: the type {name} is not implemented")
        if name not in REMOVABLE:
            raise unknown_choice("remove_io_op: op_types", name, list(REMOVABLE))
        found |= REMOVABLE[name]
    return frozenset(found)


def _check_names(function: Function, names: Sequence[str]) -> None:
    known = {name for node in function.model.graph for name in _names(node)}
    unknown = sorted(set(names) - known)
    if unknown:
        raise ArgumentError(f"remove_io_op: no operator {', '.join(map(repr, unknown))} here")


def _check_all_gone(names: Sequence[str], removed: Sequence[str], function: Function) -> None:
    for name in names:
        left = [n.name for n in function.model.graph if name in _names(n)]
        if left and name not in removed:
            raise ArgumentError(
                f"remove_io_op: {name!r} is on no input and no output, or can't be removed there; "
                "what lies before it (after it) must be removed first"
            )


def _names(node: ir.Node) -> set[str]:
    return {node.name or "", node.metadata_props.get(META_OP, "")} - {""}


def _next(
    function: Function,
    kind: str,
    index: int,
    wanted: frozenset[str],
    names: Sequence[str] | None,
) -> ir.Node | None:
    """The operator to remove next from one argument."""
    argument: Argument = getattr(function, kind)[index]
    if not removable(argument):
        return None
    (node,) = attached(argument)
    named = bool(names and _names(node) & set(names))
    return node if node.op_type in wanted or named else None


def _remove(argument: Argument, node: ir.Node) -> None:
    function, name, kind = argument.function, argument.name, argument.kind
    (moving,) = (v for v in node.inputs if v is not None and v.const_value is None)
    index = check_alive(argument)
    scale = _scale(node)
    argument.value.name = f"{name}_removed"
    if kind == "inputs":
        new = _as_input(node.outputs[0])
    else:
        new = moving
        _hand_over(node, moving.producer())
    new.name = name
    replace_argument(function, kind, index, [new])
    _remove_dead_nodes(function.model.graph)
    if scale is not None:
        scales = json.loads(function.metadata.get(META_REMOVED, "{}"))
        function.metadata[META_REMOVED] = json.dumps({**scales, name: scale})


def _hand_over(node: ir.Node, maker: ir.Node | None) -> None:
    """What is noted on the result of an operator (type, flops) stays with what is left of it."""
    if maker is None or META_RESULT in maker.metadata_props:
        return
    if node.metadata_props.get(META_OP) == maker.metadata_props.get(META_OP):
        maker.metadata_props.update(node.metadata_props)


def _remove_dead_nodes(graph: ir.Graph) -> None:
    for node in reversed(list(graph)):
        if not any(value.uses() or value.is_graph_output() for value in node.outputs):
            graph.remove(node, safe=True)


def _as_input(result: ir.Value) -> ir.Value:
    """A graph input in the place of a node's result."""
    new = ir.Value(type=result.type, shape=result.shape)
    for key in (META_SCALE, META_DTYPE, META_RANGE):
        if key in result.metadata_props:
            new.metadata_props[key] = result.metadata_props[key]
    for use in list(result.uses()):
        use.node.replace_input_with(use.idx, new)
    return new


def _scale(node: ir.Node) -> Any:
    """What ``real = code * scale`` needs: one number, or one per channel of an accumulator."""
    if node.op_type in REMOVABLE["Quantize"] | {"Dequantize"}:
        return float(_constant(node, 1).reshape(()))
    if node.op_type == "DequantizeAcc":
        product = _constant(node, 1).astype(np.float64) * _constant(node, 2)
        return [float(value) for value in product.reshape(-1)]
    return None


def _constant(node: ir.Node, index: int) -> np.ndarray[Any, Any]:
    value = node.inputs[index]
    if value is None or value.const_value is None:
        raise ArgumentError(f"{node.name}: its scale is no constant, so it can't be removed")
    return np.array(value.const_value.numpy())


def _finish(function: Function) -> None:
    graph = function.model.graph
    for key, value in list(graph.initializers.items()):
        if not value.uses():
            del graph.initializers[key]
    renew_functions(function.model)
    verify(function.model, function.metadata.get(META_STAGE, ""))
    function.changed()


def erase(argument: Argument) -> Removal:
    """Remove an input that nothing uses, or an output with all that only it needs."""
    index = check_alive(argument)
    function = argument.function
    if argument.kind == "inputs" and argument.value.uses():
        return Removal(False, f"{argument.name} is used by {len(argument.value.uses())} operators")
    if argument.kind == "outputs" and len(function.outputs) == 1:
        return Removal(False, f"{argument.name} is the only output")
    replace_argument(function, argument.kind, index, [])
    _remove_dead_nodes(function.model.graph)
    _finish(function)
    return Removal(True)
