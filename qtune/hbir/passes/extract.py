"""extract_function: the part of a function between named values, as a module of its own."""

from __future__ import annotations

import json
from collections.abc import Sequence

import onnx_ir as ir

from qtune.errors import ArgumentError
from qtune.hbir.builder import META_DTYPE, META_OP, META_RANGE, META_RESULT, META_SCALE
from qtune.hbir.module import META_DESCS, META_INPUTS, META_OUTPUTS, Function, HbirModule
from qtune.hbir.passes.edit import renew_functions
from qtune.hbir.serialize import from_bytes


def extract_function(
    function: Function, input_names: Sequence[str], output_names: Sequence[str]
) -> HbirModule:
    """A module that computes ``output_names`` from ``input_names``.

    Names are those of graph inputs and outputs, of values, or of operators (their results). Codes
    stay codes: the new inputs are fed integers where the value holds integers.
    """
    result = from_bytes(HbirModule(function.model).to_bytes())
    cut_out(result.model, input_names, output_names)
    return from_bytes(HbirModule(result.model).to_bytes())


def cut_out(model: ir.Model, input_names: Sequence[str], output_names: Sequence[str]) -> None:
    """:func:`extract_function` on ``model`` itself, which is changed."""
    sources = [_value(model, name) for name in _texts("input_names", input_names)]
    outputs = [_value(model, name) for name in _texts("output_names", output_names)]
    nodes = _between(model, sources, outputs)
    inputs = [_as_input(value, nodes) for value in sources]
    _cut(model.graph, inputs, outputs, nodes)
    for name, value in zip(input_names, inputs, strict=True):
        value.name = name
    model.metadata_props[META_INPUTS] = json.dumps(_flat_call(len(inputs)))
    model.metadata_props[META_OUTPUTS] = json.dumps(_flat_result(len(outputs)))
    descs = json.loads(model.metadata_props.get(META_DESCS, "{}"))
    for kind, values in (("inputs", inputs), ("outputs", outputs)):
        names = {value.name for value in values}
        descs[kind] = {k: v for k, v in descs.get(kind, {}).items() if k in names}
    model.metadata_props[META_DESCS] = json.dumps(descs)
    renew_functions(model)


def _texts(what: str, names: Sequence[str]) -> Sequence[str]:
    if isinstance(names, str) or not names or len(set(names)) != len(names):
        raise ArgumentError(
            f"extract_function: {what} must be a list of different names, got {names!r}"
        )
    return names


def _value(model: ir.Model, name: str) -> ir.Value:
    for value in model.graph.inputs:
        if value.name == name:
            return value
    for node in model.graph:
        for value in node.outputs:
            if value.name == name:
                return value
    for node in model.graph:
        if META_RESULT in node.metadata_props and node.metadata_props.get(META_OP) == name:
            return node.outputs[0]
    known = [n.metadata_props[META_OP] for n in model.graph if META_RESULT in n.metadata_props]
    raise ArgumentError(
        f"extract_function: no value or operator {name!r}; operators are {', '.join(known)}"
    )


def _between(
    model: ir.Model, sources: Sequence[ir.Value], outputs: Sequence[ir.Value]
) -> set[ir.Node]:
    """The nodes that the outputs need, up to the sources."""
    needed: set[ir.Node] = set()
    waiting = list(outputs)
    while waiting:
        value = waiting.pop()
        if value in sources or value.const_value is not None:
            continue
        node = value.producer()
        if node is None:
            raise ArgumentError(
                f"extract_function: the outputs also need the input {value.name!r}; name it among "
                "input_names"
            )
        if node not in needed:
            needed.add(node)
            waiting.extend(v for v in node.inputs if v is not None)
    return needed


def _as_input(value: ir.Value, nodes: set[ir.Node]) -> ir.Value:
    if value.producer() is None:
        return value
    new = ir.Value(name=f"{value.name}_fed", type=value.type, shape=value.shape)
    for key in (META_SCALE, META_DTYPE, META_RANGE):
        if key in value.metadata_props:
            new.metadata_props[key] = value.metadata_props[key]
    for use in list(value.uses()):
        if use.node in nodes:
            use.node.replace_input_with(use.idx, new)
    return new


def _cut(
    graph: ir.Graph,
    inputs: Sequence[ir.Value],
    outputs: Sequence[ir.Value],
    nodes: set[ir.Node],
) -> None:
    graph.outputs[:] = list(outputs)
    for node in reversed(list(graph)):
        if node not in nodes:
            graph.remove(node, safe=True)
    graph.inputs[:] = list(inputs)
    for name, value in list(graph.initializers.items()):
        if not value.uses():
            del graph.initializers[name]


def _flat_call(count: int) -> dict[str, object]:
    args = {"tuple": [{"leaf": index} for index in range(count)]}
    return {"dict": [["args", args], ["kwargs", {"dict": []}]]}


def _flat_result(count: int) -> dict[str, object]:
    leaves: list[dict[str, object]] = [{"leaf": index} for index in range(count)]
    return leaves[0] if count == 1 else {"tuple": leaves}
