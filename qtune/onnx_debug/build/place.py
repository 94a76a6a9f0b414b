"""Where calibration nodes sit (onnx_debugger, "calibrated model").

Directly before the integer operators that read them, one for each tensor, none inside a fused
group, none at the model's outputs. Tensors that an operator only passes on share one grid.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import onnx

from qtune.dtype import qint16
from qtune.onnx_debug.build.decompose_parts import Bounds
from qtune.onnx_debug.build.facts import Kind, NodeFacts
from qtune.onnx_debug.build.wiring import Slot, Wiring, fused_links, wiring_of
from qtune.onnx_debug.calibrated import ACTIVATION, WEIGHT

NO_OUTPUT_SCALE = (
    "its result is an output of the model, which gets no scale; model_output_type gives it one"
)
FLOAT_INPUT = "its input is float"
CONFIGURED = "the configuration keeps it float32"


@dataclass(frozen=True, slots=True)
class Place:
    """A calibration node to be.

    ``tensor``: what it reads; ``root``: the tensor whose range it has, itself or the one that
    passing operators made it from; ``slots``: the inputs that read it instead of ``tensor``;
    ``is_output``: what it gives is an output of the model. ``axis``: -1 for one scale. ``bounds``:
    what the values can't leave whatever the input.
    """

    tensor: str
    kind: str
    bits: int
    axis: int
    root: str
    slots: tuple[Slot, ...]
    is_output: bool = False
    bounds: Bounds | None = None


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the configuration asks for. ``bits``: node -> 8, 16 or 32 (float); ``inputs``: the same
    of single inputs; ``outputs``: output of the model -> 8, 16 or 32."""

    bits: Mapping[str, int] = field(default_factory=dict)
    inputs: Mapping[Slot, int] = field(default_factory=dict)
    outputs: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Placement:
    """All places in graph order, and why each node that stays float does so.

    ``moved``: inputs that read a tensor where the file has it on a grid -> that (``kept``).
    """

    places: tuple[Place, ...]
    floats: Mapping[str, str]
    moved: Mapping[Slot, str] = field(default_factory=dict)


def placed(
    proto: onnx.ModelProto,
    facts: Mapping[str, NodeFacts],
    wishes: Wishes,
    refused: Mapping[str, str],
) -> Placement:
    """Where the calibration nodes of the optimized model ``proto`` sit.

    ``refused``: nodes that the march does not run, each with the reason.
    """
    wiring = wiring_of(proto.graph)
    floats = {name: fact.reason for name, fact in facts.items() if fact.kind is Kind.FLOAT}
    floats |= {name: CONFIGURED for name, bits in wishes.bits.items() if bits == 32}
    floats |= refused
    floats |= _joined_to_floats(facts, floats)
    floats |= _clamps_of_floats(wiring, facts, floats)
    while True:
        planner = _Planner(wiring, facts, wishes, floats)
        tails = planner.tails()
        if not tails:
            return Placement(planner.places(), floats)
        floats |= tails
        floats |= _joined_to_floats(facts, floats)
        floats |= _clamps_of_floats(wiring, facts, floats)


def _joined_to_floats(facts: Mapping[str, NodeFacts], floats: Mapping[str, str]) -> dict[str, str]:
    """Nodes that one operator computes along are float where one of them is."""
    groups: dict[str, list[str]] = {}
    for name, fact in facts.items():
        if fact.kind is Kind.JOINED:
            groups.setdefault(fact.joins, [fact.joins]).append(name)
    found: dict[str, str] = {}
    for group in groups.values():
        reason = next((floats[name] for name in group if name in floats), None)
        if reason is not None:
            found |= {name: floats.get(name, reason) for name in group}
    return found


def _clamps_of_floats(
    wiring: Wiring, facts: Mapping[str, NodeFacts], floats: Mapping[str, str]
) -> dict[str, str]:
    """Clamps behind float operators: a grid before them would spend codes on what they cut off."""
    found: dict[str, str] = {}
    for name, node in wiring.nodes.items():
        maker = wiring.maker.get(node.input[0], "") if node.input else ""
        if facts[name].clamps and name not in floats and (maker in floats or maker in found):
            found[name] = FLOAT_INPUT
    return found


class _Planner:
    """One pass with a fixed set of float nodes."""

    def __init__(
        self,
        wiring: Wiring,
        facts: Mapping[str, NodeFacts],
        wishes: Wishes,
        floats: Mapping[str, str],
    ) -> None:
        self.wiring, self.facts, self.wishes, self.floats = wiring, facts, wishes, floats
        self.fused = fused_links(wiring, facts, floats)
        self.passing = self._passing()

    def tails(self) -> dict[str, str]:
        """Integer operators whose result is only an output of the model and can't be exact."""
        found = {}
        for name in self.wiring.nodes:
            tensor = self.wiring.nodes[name].output[0] if self.wiring.nodes[name].output else ""
            is_tail = tensor in self.wiring.outputs and not self.wiring.slots.get(tensor)
            is_tail |= self._is_part(name) and self._only_moves_out(tensor)
            if self._is_integer(name) and is_tail and not self._has_output_grid(tensor):
                head = self._head(name)
                if not self.facts[head].is_gemm:
                    found[head] = NO_OUTPUT_SCALE
        return found

    def _is_part(self, name: str) -> bool:
        part = self.facts[name].part
        return part is not None and not part.is_written

    def _only_moves_out(self, tensor: str) -> bool:
        """Whether a tensor is nothing but outputs of the model without grids, also once moved."""
        readers = [name for name, _ in self.wiring.slots.get(tensor, ())]
        if self._has_output_grid(tensor) or not (readers or tensor in self.wiring.outputs):
            return False
        return all(
            self.facts[name].kind is Kind.PASSING
            and name not in self.passing
            and not self._is_integer(name)
            and all(self._only_moves_out(out) for out in self.wiring.nodes[name].output)
            for name in readers
        )

    def _is_integer(self, name: str) -> bool:
        if name in self.floats:
            return False
        joined = any(tensor in self.fused for tensor in self.wiring.nodes[name].input)
        return self.facts[name].kind in (Kind.INTEGER, Kind.JOINED) or joined

    def _head(self, name: str) -> str:
        """The first operator of the fused group that ends with ``name``."""
        for tensor in self.wiring.nodes[name].input:
            if tensor in self.fused:
                return self.fused[tensor]
        return name

    def _has_output_grid(self, tensor: str) -> bool:
        return self.wishes.outputs.get(tensor, 32) != 32

    def _passing(self) -> set[str]:
        """Passing operators that lead to an integer one, so that they move codes."""
        found: set[str] = set()
        for name in sorted(self.wiring.nodes, key=self.wiring.order.__getitem__, reverse=True):
            fact = self.facts[name]
            if fact.kind is not Kind.PASSING or name in self.floats or self._is_integer(name):
                continue
            node = self.wiring.nodes[name]
            slots = [slot for out in node.output for slot in self.wiring.slots.get(out, ())]
            wanted = any(self._has_output_grid(out) for out in node.output)
            if wanted or any(self._takes_codes(slot, found) for slot in slots):
                found.add(name)
        return found

    def _takes_codes(self, slot: Slot, passing: set[str]) -> bool:
        name, index = slot
        if index not in self.facts[name].inputs:
            return False
        return name in passing or self._is_integer(name)

    def places(self) -> tuple[Place, ...]:
        readers = self._readers()
        roots = _Roots(self._pairs(readers))
        bits: dict[str, int] = {}
        for tensor, slots in readers.items():
            root = roots.of(tensor)
            wanted = max((self._bits(slot) for slot in slots), default=8)
            if self._has_output_grid(tensor):
                wanted = max(wanted, self.wishes.outputs[tensor])
            wanted = max(wanted, self._forced_bits(tensor))
            bits[root] = max(bits.get(root, 8), wanted)
        made = []
        for tensor, slots in readers.items():
            root = roots.of(tensor)
            if tensor in self.wiring.constants:
                made += self._constant(tensor, slots)
            else:
                is_output = tensor in self.wiring.outputs and self._gives_output(tensor, slots)
                bounds = self._bounds(root)
                made.append(
                    Place(tensor, ACTIVATION, bits[root], -1, root, tuple(slots), is_output, bounds)
                )
        return tuple(made)

    def _readers(self) -> dict[str, list[Slot]]:
        """Tensor -> the inputs that read it on a grid, in graph order."""
        found: dict[str, list[Slot]] = {}
        for name, node in self.wiring.nodes.items():
            for index, tensor in enumerate(node.input):
                if tensor in self.fused or not self._takes_codes((name, index), self.passing):
                    continue
                if tensor in self.wiring.constants and self._is_joined_bias(name):
                    continue
                if index == self.facts[name].weight or not self._is_number(tensor):
                    found.setdefault(tensor, []).append((name, index))
        for name in self.wiring.nodes:
            self._add_inexact(name, found)
        return found

    def _is_joined_bias(self, name: str) -> bool:
        """Whether the constants of a node are the bias of the matmul before it."""
        inputs = self.wiring.nodes[name].input
        return self.facts[name].is_bias and any(tensor in self.fused for tensor in inputs)

    def _is_number(self, tensor: str) -> bool:
        """A constant of one element: operators take it as a number, exactly."""
        return tensor in self.wiring.constants and tensor in self.wiring.numbers

    def _add_inexact(self, name: str, found: dict[str, list[Slot]]) -> None:
        """What can't leave the integers exactly is read on its grid by float operators too."""
        if not self._is_integer(name):
            return
        for tensor in self.wiring.nodes[name].output:
            slots = self.wiring.slots.get(tensor, [])
            if tensor in self.fused or not tensor:
                continue
            wanted = self._has_output_grid(tensor)
            if (not self.facts[self._head(name)].is_gemm and slots) or wanted:
                rest = [slot for slot in slots if slot not in found.get(tensor, [])]
                found.setdefault(tensor, []).extend(rest)

    def _gives_output(self, tensor: str, slots: list[Slot]) -> bool:
        maker = self.wiring.maker.get(tensor)
        if self._has_output_grid(tensor):
            return True
        return (
            maker is not None
            and self._is_integer(maker)
            and (not self.facts[self._head(maker)].is_gemm)
        )

    def _pairs(self, readers: Mapping[str, list[Slot]]) -> list[tuple[str, str]]:
        """(input, output) of passing operators where both are on a grid."""
        return [
            (node.input[0], out)
            for name, node in self.wiring.nodes.items()
            if name in self.passing
            for out in node.output
            if out in readers and node.input[0] in readers
        ]

    def _bits(self, slot: Slot) -> int:
        name, index = slot
        fact = self.facts[name]
        if index in fact.wants and fact.wants[index] == qint16:
            return 16
        if name in self.floats or name in self.passing:
            return self.wishes.inputs.get(slot, 8)
        return self.wishes.inputs.get(slot, self.wishes.bits.get(name, 8))

    def _bounds(self, tensor: str) -> Bounds | None:
        maker = self.wiring.maker.get(tensor, "")
        part = self.facts[maker].part if maker else None
        return None if part is None else part.bounds

    def _forced_bits(self, tensor: str) -> int:
        """What the operator that a tensor's maker is a part of demands of the tensor."""
        maker = self.wiring.maker.get(tensor, "")
        part = self.facts[maker].part if maker and maker not in self.floats else None
        return 0 if part is None else part.bits

    def _constant_bits(self, slot: Slot) -> int:
        """Constants of parts that compute with int16 numbers are int16, too."""
        name, _ = slot
        inside = max(self._forced_bits(tensor) for tensor in self.wiring.nodes[name].input)
        return max(self._bits(slot), inside if self.facts[name].part is not None else 0)

    def _constant(self, tensor: str, slots: list[Slot]) -> list[Place]:
        """One node for all readers that see the constant in one way."""
        ways: dict[tuple[str, int, int], list[Slot]] = {}
        for slot in slots:
            name, index = slot
            fact = self.facts[name]
            is_weight = index == fact.weight
            bits = self.wishes.inputs.get(slot, 8) if is_weight else self._constant_bits(slot)
            axis = fact.axis if is_weight else -1
            ways.setdefault((WEIGHT, bits, axis), []).append(slot)
        return [
            Place(tensor, kind, bits, axis, tensor, tuple(group))
            for (kind, bits, axis), group in ways.items()
        ]


class _Roots:
    """Tensors that share a grid, and the first of each such set."""

    def __init__(self, pairs: list[tuple[str, str]]) -> None:
        self._before: dict[str, str] = {}
        for source, result in pairs:
            self._before.setdefault(result, source)

    def of(self, tensor: str) -> str:
        """The tensor that passing operators made ``tensor`` from; itself where there is none."""
        while tensor in self._before:
            tensor = self._before[tensor]
        return tensor
