"""Composed operators become their parts, which run on integers, before anything is calibrated.

The optimized float model keeps them whole; the calibrated one has the parts, each named
``<node>_<part>``. Nothing changes beyond float rounding.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import onnx
import onnx_ir as ir
import onnx_ir.passes.common as passes
from onnx import shape_inference

from qtune.dtype import qint16
from qtune.errors import ExportError, HbirError, OnnxImportError
from qtune.hbir.builder import constant_value
from qtune.hbir.onnx_import import source as files
from qtune.hbir.onnx_import.fold import fold
from qtune.hbir.onnx_import.form import rewrites
from qtune.hbir.onnx_import.names import free_name
from qtune.onnx_debug.build.decompose_calls import call_of, may_be_call
from qtune.onnx_debug.build.decompose_parts import Bounds, Note, PartsBuilder, part_of
from qtune.onnx_debug.build.decompose_written import written_norms
from qtune.ops import registry
from qtune.ops.spec import Rule

_RECURRENT = ("GRU", "LSTM", "RNN")
"""Operators whose loop the import unrolls into more nodes than anyone wants to see."""

_SHAPED = ("Reshape", "Expand")


@dataclass(frozen=True, slots=True)
class Part:
    """A node of the calibrated model that computes a part of a node of the optimized one.

    ``origin``: that node; of a norm that the file writes with several nodes, the last of those,
    which all stay (``is_written``). ``bits``: of its result whatever the configuration says, 0 for
    the configured ones. ``bounds``: what its values can't leave.
    """

    origin: str
    bits: int = 0
    bounds: Bounds | None = None
    is_written: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Decomposed:
    """``parts``: by name of the node. ``refused``: nodes that have parts, but not here, and why."""

    proto: onnx.ModelProto
    parts: Mapping[str, Part] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)

    def of(self, origin: str) -> list[str]:
        """Names of the parts of ``origin``, in order."""
        return [name for name, part in self.parts.items() if part.origin == origin]


def decomposed(
    proto: onnx.ModelProto, candidates: Collection[str], whole: Collection[str] = ()
) -> Decomposed:
    """The optimized model ``proto``, which stays as it is, with its composed operators in parts.

    ``candidates``: nodes that have no integer rule of their own; operators that the registry
    decomposes are found without. ``whole``: nodes that stay as they are.
    """
    model = files.as_ir(proto)
    work = _Decomposer(model.graph, candidates, whole)
    work.run()
    if not work.parts:
        return Decomposed(proto, {}, work.refused)
    passes.RemoveUnusedNodesPass()(model)
    fold(model)
    made = shape_inference.infer_shapes(ir.to_proto(model), data_prop=True)
    names = [node.name for node in made.graph.node]
    parts = {name: work.parts[name] for name in names if name in work.parts}
    return Decomposed(made, parts, work.refused)


class _Decomposer:
    """Replaces nodes of ``graph`` in place, parts of parts too."""

    def __init__(
        self, graph: ir.Graph, candidates: Collection[str], whole: Collection[str]
    ) -> None:
        self.graph, self.candidates, self.whole = graph, candidates, whole
        self.parts: dict[str, Part] = {}
        self.refused: dict[str, str] = {}
        self._done: set[str] = set()
        self._nodes = {node.name or "" for node in graph}
        self._tensors = {value.name or "" for node in graph for value in node.outputs}
        self._tensors |= {value.name or "" for value in graph.inputs} | set(graph.initializers)
        for names, result in written_norms(graph):
            if names[-1] not in whole:
                self.parts |= {
                    name: Part(names[-1], 0 if name == result else 16, None, True) for name in names
                }

    def run(self) -> None:
        """Go through the nodes in order, parts included."""
        waiting = list(self.graph)
        while waiting:
            node = waiting.pop(0)
            stays = node.name in self.whole or node.name in self._done or node.domain
            if not stays and node.op_type not in _RECURRENT:
                waiting[:0] = self._tried(node)

    def _tried(self, node: ir.Node) -> list[ir.Node]:
        """The nodes that replace ``node``; none where it stays."""
        name = node.name or ""
        builder = PartsBuilder(name)
        try:
            with builder.emitting_for(name):
                result = self._emitted(builder, node)
            if result is None:
                return []
            _check_batch(builder)
            return self._put(builder, node, result)
        except (OnnxImportError, HbirError, ExportError, NotImplementedError) as error:
            self.refused[name] = str(error)
            return []

    def _emitted(self, builder: PartsBuilder, node: ir.Node) -> ir.Value | None:
        """The result of what ``node`` becomes in ``builder``; ``None`` where it is one operator."""
        rewrite = rewrites().get(node.op_type)
        if node.name not in self.candidates and node.name not in self.parts:
            rewrite = None
        if rewrite is None and not may_be_call(node.op_type):
            return None
        given = builder.node(node)
        call = call_of(builder, given)
        if call is not None:
            return _value(builder.take_operator(registry.spec(call[0]), call[1]))
        if rewrite is None:
            return None
        result = rewrite(builder, given)
        if not builder.notes and not _are_several(builder.graph):
            return None
        return _value(result)

    def _put(self, builder: PartsBuilder, node: ir.Node, result: ir.Value) -> list[ir.Node]:
        """Put the nodes of ``builder`` in the place of ``node``, which goes."""
        if result.producer() is None:
            return []
        builder.graph.outputs.append(result)
        builder.remove_dead_nodes()
        inner = builder.finished()
        if any(value.shape is None for item in inner for value in item.outputs):
            raise OnnxImportError(f"{node.name}: onnx can't infer the sizes of its parts")
        last = inner.outputs[0].producer()
        before = self.parts.pop(node.name or "", None)
        known: dict[ir.Value, ir.Value] = dict(builder.entered)
        items = list(inner)
        ends = {part_of(item): item for item in items}
        made = []
        for item in items:
            new = self._copied(item, builder.notes, ends, known)
            note = builder.notes.get(part_of(item))
            self.parts[new.name or ""] = _part(node, before, note, is_last=item is last)
            self.graph.insert_before(node, new)
            made.append(new)
            if new.op_type == node.op_type:  # what is left of an operator is not taken apart again
                self._done.add(new.name or "")
        self._take_output(node, known[inner.outputs[0]])
        return made

    def _copied(
        self,
        item: ir.Node,
        notes: Mapping[str, Note],
        ends: Mapping[str, ir.Node],
        known: dict[ir.Value, ir.Value],
    ) -> ir.Node:
        """A node of the model like ``item``; ``known`` gets its results."""
        part = part_of(item)
        is_part = part in notes and ends[part] is item
        base = part if is_part else f"{part}_{item.op_type}"
        name = free_name(base, self._nodes)
        self._nodes.add(name)
        inputs = [None if value is None else self._input(value, known) for value in item.inputs]
        new = ir.Node(
            item.domain,
            item.op_type,
            inputs,
            list(item.attributes.values()),
            num_outputs=len(item.outputs),
            name=name,
        )
        for value, source in zip(new.outputs, item.outputs, strict=True):
            value.name, value.type, value.shape = self._free_tensor(name), source.type, source.shape
            known[source] = value
        return new

    def _input(self, value: ir.Value, known: dict[ir.Value, ir.Value]) -> ir.Value:
        if value not in known:
            if value.const_value is None:
                raise OnnxImportError(f"{value.name!r} is made by no part")
            array = value.const_value.numpy()
            name = self._free_tensor((value.name or "constant").replace("/", "_"))
            constant = constant_value(name, array)
            self.graph.initializers.add(constant)
            known[value] = constant
        return known[value]

    def _take_output(self, node: ir.Node, value: ir.Value) -> None:
        """``value`` becomes what ``node`` made, under that name."""
        old = node.outputs[0]
        name, value.type, value.shape = old.name, old.type, old.shape
        ir.convenience.replace_all_uses_with(old, value, replace_graph_outputs=True)
        self.graph.remove(node, safe=True)
        value.name = name

    def _free_tensor(self, base: str) -> str:
        name = free_name(base, self._tensors)
        self._tensors.add(name)
        return name


def _part(node: ir.Node, before: Part | None, note: Note | None, *, is_last: bool) -> Part:
    """What is known of a node that takes part in replacing ``node``.

    Inner results of what is no operator of the registry as a whole are int16, too.
    """
    origin = (node.name or "") if before is None or before.is_written else before.origin
    outer = 0 if before is None else before.bits
    if note is None:
        return Part(origin, outer if is_last else 16)
    return Part(origin, 16 if note.dtype is qint16 else outer if is_last else 0, note.bounds)


def _value(result: Any) -> ir.Value:
    if not isinstance(result, ir.Value):
        raise NotImplementedError("it has several results")
    return result


def _are_several(nodes: Iterable[ir.Node]) -> bool:
    """Whether the nodes are operators of the registry, more than one of them with a scale."""
    owners = [registry.kernel_owners().get((node.domain, node.op_type)) for node in nodes]
    if None in owners:
        return False
    return sum(owner is not None and owner.rule is not Rule.INPUT_SCALE for owner in owners) > 1


def _check_batch(builder: PartsBuilder) -> None:
    """Refuse shapes that hold the example's batch."""
    if not builder.free_batch:
        return
    for node in builder.graph:
        source = node.inputs[0] if node.inputs else None
        if node.op_type in _SHAPED and source is not None and source.const_value is None:
            raise OnnxImportError(
                f"{builder.name}: its parts hold the first size, which is free; give it "
                "(input_dict)"
            )
