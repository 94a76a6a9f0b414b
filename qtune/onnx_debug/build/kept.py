"""Grids that a file brings: its calibration nodes and pairs stay as they are, the rest is built.

While a build plans and observes, an Identity (for a constant, an initializer) stands where the
file's nodes were, under the name of their result. So the plan sees a float model; what it would
place on tensors that lie on a grid is taken off again (``adapted``), and the file's nodes go back
(``restored``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import onnx
from onnx import numpy_helper

from qtune.hbir import hz_calibration
from qtune.hbir.onnx_import.graph_view import replace_nodes
from qtune.hbir.onnx_import.names import free_name
from qtune.onnx_debug.build.constant_grids import grid_of_values
from qtune.onnx_debug.build.facts import Kind, NodeFacts
from qtune.onnx_debug.build.place import Place, Placement
from qtune.onnx_debug.build.wiring import Slot, wiring_of


@dataclass(frozen=True, slots=True, eq=False)
class KeptGrid:
    """A grid of the file. ``source``: the tensor that is brought to it, ``output``: what is on it.

    ``nodes``: what computes ``output``, in order. ``stand_in``: the name of the Identity in their
    place; ``None`` for a constant, whose place an initializer ``output`` takes.
    """

    source: str
    output: str
    bits: int
    nodes: tuple[onnx.NodeProto, ...]
    stand_in: str | None = None


@dataclass(frozen=True, slots=True)
class LostGrid:
    """A pair of the file that has no form here. ``readers``: nodes that read what was on the grid;
    ``maker``: the node that makes ``source``, or nothing."""

    source: str
    readers: tuple[str, ...]
    maker: str
    reason: str


@dataclass(frozen=True, slots=True, eq=False)
class Kept:
    """The grids of a file, by their output. ``constants``: initializers that only they read.

    ``lost``: those without a form, by their output too.
    ``is_all``: the build adds none (``calibration_type: load``), but to constants that lie on one.
    """

    grids: Mapping[str, KeptGrid] = field(default_factory=dict)
    constants: Sequence[onnx.TensorProto] = ()
    lost: Mapping[str, LostGrid] = field(default_factory=dict)
    is_all: bool = False

    @property
    def stand_ins(self) -> Mapping[str, KeptGrid]:
        """The grids of activations by the name of their Identity."""
        return {grid.stand_in: grid for grid in self.grids.values() if grid.stand_in is not None}

    def facts(self, facts: Mapping[str, NodeFacts]) -> dict[str, NodeFacts]:
        """``facts`` in which the stand-ins hand their input on."""
        passing = {
            name: NodeFacts(name, "Identity", Kind.PASSING, inputs={0: "input"})
            for name in self.stand_ins
        }
        return {**facts, **passing}

    def refused(self, facts: Mapping[str, NodeFacts]) -> dict[str, str]:
        """Nodes that stay float because a grid before or behind them has no form here."""
        found: dict[str, str] = {}
        for grid in self.lost.values():
            for name in grid.readers:
                found.setdefault(name, f"its input {grid.source}: {grid.reason}")
            if grid.maker and not facts[grid.maker].is_gemm:
                found.setdefault(grid.maker, f"its result {grid.source}: {grid.reason}")
        return {name: reason for name, reason in found.items() if name not in self.stand_ins}

    def without_grid(
        self, proto: onnx.ModelProto, facts: Mapping[str, NodeFacts], placement: Placement
    ) -> dict[str, str]:
        """Nodes that stay float because the file has no grid for them, where it has all."""
        if not self.is_all:
            return {}
        wiring = wiring_of(proto.graph)
        constants = {tensor.name: tensor for tensor in proto.graph.initializer}
        found: dict[str, str] = {}
        for place in placement.places:
            held = constants.get(place.tensor)
            if held is not None and grid_of_values(numpy_helper.to_array(held), place.axis):
                continue
            names = {name for name, _ in place.slots if name not in placement.floats}
            makers = {wiring.maker[place.tensor]} if place.tensor in wiring.maker else set()
            for name in names or makers:
                found[name] = f"the file has no grid for {place.tensor} (calibration_type: load)"
        return {n: r for n, r in found.items() if facts[n].kind in (Kind.INTEGER, Kind.PASSING)}

    def settled(self, proto: onnx.ModelProto, facts: Mapping[str, NodeFacts]) -> set[str]:
        """Nodes of ``proto`` that the file has settled: what it reads and gives lies on its grids.

        They are not taken apart, and run as the file itself would: on integers, or in float.
        """
        wiring, stand_ins = wiring_of(proto.graph), self.stand_ins
        found, on_grid = set(stand_ins), set(self.grids)
        for name, node in wiring.nodes.items():
            operands = [tensor for tensor in node.input if tensor and tensor in wiring.shapes]
            if not operands or not on_grid.issuperset(operands):
                continue
            if facts[name].kind is Kind.PASSING:
                on_grid.update(node.output)
            readers = {user for out in node.output for user, _ in wiring.slots.get(out, ())}
            if stand_ins.keys() >= readers:
                found.add(name)
        return found

    def adapted(
        self, proto: onnx.ModelProto, facts: Mapping[str, NodeFacts], placement: Placement
    ) -> Placement:
        """``placement`` without what the file has a grid for.

        A reader of a tensor that the file brings to a grid for others reads it from there, and
        so does what passing operators make of it; what leads to grids of the file only needs none
        before.
        """
        if not self.grids:
            return placement
        planner = _Adapting(proto, facts, placement, self)
        places = tuple(place for old in placement.places if (place := planner.place(old)))
        return replace(placement, places=places, moved=planner.moved)

    def joined(self, proto: onnx.ModelProto) -> onnx.ModelProto:
        """A copy of ``proto`` with the file's nodes; ``proto`` itself where there are none.

        It is the model as the file has it: what it does not quantize sees values on grids.
        """
        if not self.grids:
            return proto
        copy = onnx.ModelProto()
        copy.CopyFrom(proto)
        return self.restored(copy, {})

    def restored(self, proto: onnx.ModelProto, moved: Mapping[Slot, str]) -> onnx.ModelProto:
        """``proto``, changed in place, with the file's nodes; ``moved``: input -> what it reads."""
        if not self.grids:
            return proto
        graph, stand_ins = proto.graph, self.stand_ins
        waiting = {name: grid for name, grid in self.grids.items() if grid.stand_in is None}
        own = _Own({node.name for node in graph.node} - stand_ins.keys())
        nodes: list[onnx.NodeProto] = []
        for node in graph.node:
            for index, name in enumerate(node.input):
                node.input[index] = moved.get((node.name, index), name)
            for name in node.input:
                nodes += own.nodes(waiting.pop(name)) if name in waiting else ()
            nodes += own.nodes(stand_ins[node.name]) if node.name in stand_ins else (node,)
        replace_nodes(graph, nodes)
        left = [tensor for tensor in graph.initializer if tensor.name not in self.grids]
        there = {tensor.name for tensor in graph.initializer}
        left += [tensor for tensor in self.constants if tensor.name not in there]
        copies = [onnx.TensorProto.FromString(t.SerializeToString()) for t in left]
        del graph.initializer[:]
        graph.initializer.extend(copies)
        hz_calibration.declare(proto)
        return proto


class _Own:
    """Gives the file's nodes, each once, under names that no other node has."""

    def __init__(self, taken: set[str]) -> None:
        self.taken = taken
        self.made: set[str] = set()

    def nodes(self, grid: KeptGrid) -> list[onnx.NodeProto]:
        found = []
        for node in grid.nodes:
            if node.output[0] in self.made:
                continue  # several operators that move a constant begin with the same node
            copy = onnx.NodeProto()
            copy.CopyFrom(node)
            copy.name = free_name(node.name, self.taken)
            self.taken.add(copy.name)
            self.made.add(node.output[0])
            found.append(copy)
        return found


def without_stand_ins(proto: onnx.ModelProto, names: Collection[str]) -> onnx.ModelProto:
    """A copy of ``proto`` without the Identities ``names``, but for those that make an output."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    results = {info.name for info in copy.graph.output}
    renamed: dict[str, str] = {}
    nodes = []
    for node in copy.graph.node:
        for index, name in enumerate(node.input):
            node.input[index] = renamed.get(name, name)
        if node.name in names and node.output[0] not in results:
            renamed[node.output[0]] = node.input[0]
        else:
            nodes.append(node)
    if renamed:
        replace_nodes(copy.graph, nodes)
        infos = [info for info in copy.graph.value_info if info.name not in renamed]
        del copy.graph.value_info[:]
        copy.graph.value_info.extend(infos)
    return copy


class _Adapting:
    """Which tensors lie on a grid of the file, and which lead to such grids only."""

    def __init__(
        self,
        proto: onnx.ModelProto,
        facts: Mapping[str, NodeFacts],
        placement: Placement,
        kept: Kept,
    ) -> None:
        self.wiring, self.facts = wiring_of(proto.graph), facts
        self.floats, self.kept = placement.floats, kept
        self.stand_ins = kept.stand_ins
        self.by_source = {
            grid.source: grid.output for grid in reversed(list(self.stand_ins.values()))
        }
        self.moved: dict[Slot, str] = {}
        for place in placement.places:
            self._move(place)
        self.on_grid = self._on_grid()
        self.leading = self._leading()

    def _move(self, place: Place) -> None:
        target = self.by_source.get(place.tensor)
        if target is not None:
            self.moved |= dict.fromkeys(
                (slot for slot in place.slots if slot[0] not in self.stand_ins), target
            )

    def _passes(self, name: str) -> bool:
        kind = self.facts[name].kind
        return kind is Kind.PASSING and name not in self.floats and name not in self.stand_ins

    def _on_grid(self) -> set[str]:
        found = set(self.kept.grids)
        for name, node in self.wiring.nodes.items():
            if self._passes(name) and ((name, 0) in self.moved or node.input[0] in found):
                found.update(node.output)
        return found

    def _leading(self) -> set[Slot]:
        """Inputs whose values go to grids of the file only."""
        found: set[Slot] = set()
        for name in sorted(self.wiring.nodes, key=self.wiring.order.__getitem__, reverse=True):
            node = self.wiring.nodes[name]
            if name in self.stand_ins:
                found.add((name, 0))
            elif self._passes(name) and found.issuperset(
                slot for out in node.output for slot in self.wiring.slots.get(out, ())
            ):
                is_output = any(out in self.wiring.outputs for out in node.output)
                found |= set() if is_output else {(name, 0)}
        return found

    def place(self, place: Place) -> Place | None:
        """What is left of a place; ``None`` for nothing."""
        if place.tensor in self.on_grid:
            return None
        slots = tuple(
            slot for slot in place.slots if slot not in self.moved and slot not in self.leading
        )
        if not slots and (place.slots or place.tensor in self.by_source):
            return None
        return replace(place, slots=slots)
