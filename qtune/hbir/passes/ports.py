"""The book-keeping when arguments change: names, descriptions, containers, removed scales."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

from qtune.errors import ArgumentError
from qtune.hbir.argument import META_REMOVED, Argument, Kind, check_alive
from qtune.hbir.builder import META_BATCH
from qtune.hbir.module import META_DESCS, META_INPUTS, META_OUTPUTS, Function
from qtune.hbir.structure import Spec

_STRUCTURE = {"inputs": META_INPUTS, "outputs": META_OUTPUTS}


def replace_argument(
    function: Function, kind: Kind, index: int, values: Sequence[ir.Value]
) -> list[Argument]:
    """Put ``values`` in the place of argument ``index``; return the new arguments.

    Several take the place of one as a tuple in the call's containers. With none the place is None.
    """
    ports = _ports(function, kind)
    old = ports[index]
    ports.pop(index)
    for place, value in enumerate(values):
        ports.insert(index + place, value)
    key = _STRUCTURE[kind]
    if key in function.metadata:
        spec = json.loads(function.metadata[key])
        function.metadata[key] = json.dumps(_replace_leaf(spec, index, len(values)))
    _move_desc(function, kind, old.name or "", [value.name or "" for value in values])
    function.changed()
    arguments = function.inputs if kind == "inputs" else function.outputs
    return list(arguments[index : index + len(values)])


def _ports(function: Function, kind: Kind) -> Any:
    graph = function.model.graph
    return graph.inputs if kind == "inputs" else graph.outputs


def _replace_leaf(spec: Any, index: int, count: int) -> Any:
    """The containers with leaf ``index`` as ``count`` leaves; later ones are renumbered."""
    if isinstance(spec, list):
        return [_replace_leaf(item, index, count) for item in spec]
    if not isinstance(spec, dict):
        return spec
    if "leaf" not in spec:
        return {key: _replace_leaf(item, index, count) for key, item in spec.items()}
    leaf = spec["leaf"]
    if leaf != index:
        return {"leaf": leaf + count - 1 if leaf > index else leaf}
    leaves: list[Spec] = [{"leaf": index + place} for place in range(count)]
    if count == 0:
        return {"const": None}
    return leaves[0] if count == 1 else {"tuple": leaves}


def _move_desc(function: Function, kind: Kind, old: str, new: Sequence[str]) -> None:
    table = json.loads(function.metadata.get(META_DESCS, "{}"))
    descs = table.setdefault(kind, {})
    text = descs.pop(old, None)
    if text is not None:
        descs.update(dict.fromkeys(new, text))
    function.metadata[META_DESCS] = json.dumps(table)


def rename(argument: Argument, name: str) -> None:
    """Give an argument another name, which no other value may have."""
    check_alive(argument)
    old = argument.name
    if name == old:
        return
    if not isinstance(name, str) or not name or name in taken_names(argument.function.model):
        raise ArgumentError(
            f"{old!r} can't be renamed to {name!r}: names are texts that differ within a module"
        )
    function = argument.function
    scales = json.loads(function.metadata.get(META_REMOVED, "{}"))
    if old in scales:
        scales[name] = scales.pop(old)
        function.metadata[META_REMOVED] = json.dumps(scales)
    argument.value.name = name
    _move_desc(function, argument.kind, old, [name])
    function.changed()


def describe_argument(argument: Argument, text: str) -> None:
    """Set the description of an argument."""
    check_alive(argument)
    if not isinstance(text, str):
        raise ArgumentError(f"{argument.name}: expected a text as desc, got {text!r}")
    function = argument.function
    table = json.loads(function.metadata.get(META_DESCS, "{}"))
    table.setdefault(argument.kind, {})[argument.name] = text
    function.metadata[META_DESCS] = json.dumps(table)
    function.changed()


def taken_names(model: ir.Model) -> set[str]:
    """Names of all values and nodes of a model."""
    graph = model.graph
    names = {value.name or "" for value in (*graph.inputs, *graph.initializers.values())}
    for node in graph:
        names.add(node.name or "")
        names.update(value.name or "" for value in node.outputs)
    return names


def close_batch(function: Function) -> None:
    """From now on the function runs the batch size of its example only."""
    if META_BATCH in function.metadata:
        function.metadata[META_BATCH] = "fixed"
