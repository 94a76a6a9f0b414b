"""Static memory plan of a quantized function: where each activation lies, how long it lives.

Buffers that are alive at the same step get different places; the rest share. Finding the smallest
arena is hard, so the plan is greedy: buffers are taken in some order and each goes into the
smallest free gap that takes it. Orders tried: by size, and by size times life.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from math import prod
from typing import Any

import onnx_ir as ir

ALIGNMENT = 64
"""Bytes; every buffer starts at a multiple (``Hardware.allocation`` in a compiled program)."""

PIXEL_CHANNELS = 4
"""A last dimension of up to so many is taken for the channels of a pixel, part of its row."""

STRATEGIES = ("none", "order", "best")
"""No reuse; first fit in order of execution; the best of several orders. ``opt`` 0, 1, 2."""


VIEWS = frozenset({"Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze"})
"""Operators that only name the same bytes anew: their results need no memory of their own."""


@dataclass(frozen=True, slots=True)
class Buffer:
    """One activation: bytes from ``offset`` on, alive from step ``first`` to step ``last``.

    ``views``: further values that are the same bytes (the results of reshapes).
    """

    name: str
    size: int
    first: int
    last: int
    offset: int
    views: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output in memory: bytes from one index to the next of each dimension."""

    name: str
    kind: str
    shape: tuple[int, ...]
    dtype: str
    strides: tuple[int, ...]
    bytes: int


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Offsets of all activations in one arena, and the bytes of the constants beside it.

    ``lower_bound_bytes``: the most bytes alive at one step; no plan needs less. ``strategy``: one
    of ``STRATEGIES``.
    """

    buffers: tuple[Buffer, ...]
    arena_bytes: int
    constant_bytes: int
    lower_bound_bytes: int = 0
    strategy: str = "best"
    alignment: int = ALIGNMENT
    ports: tuple[Port, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Padding:
    """How inputs and outputs are laid out: rows start at multiples of these bytes (1: dense)."""

    inputs: int = 1
    outputs: int = 1


def plan_memory(
    graph: ir.Graph,
    strategy: str = "best",
    alignment: int = ALIGNMENT,
    padding: Padding | None = None,
) -> MemoryPlan:
    """Place every activation of ``graph``."""
    ports = tuple(_ports(graph, padding or Padding()))
    demands = lives(graph, alignment, {port.name: port.bytes for port in ports})
    placed = _place(demands, strategy)
    arena = max((buffer.offset + buffer.size for buffer in placed), default=0)
    constants = sum(value_bytes(value) for value in graph.initializers.values())
    return MemoryPlan(
        tuple(sorted(placed, key=lambda b: (b.first, b.offset, b.name))),
        arena,
        constants,
        lower_bound(demands),
        strategy,
        alignment,
        ports,
    )


def lives(graph: ir.Graph, alignment: int, sizes: dict[str, int]) -> list[Buffer]:
    """Size and life of each activation, not yet placed (offset 0); views share a buffer."""
    nodes = list(graph)
    step_of = {node: index for index, node in enumerate(nodes)}
    groups: dict[ir.Value, list[ir.Value]] = {value: [value] for value in graph.inputs}
    root_of = {value: value for value in graph.inputs}
    for value in (value for node in nodes for value in node.outputs):
        source = _viewed(value, sizes)
        root_of[value] = root = value if source is None else root_of.get(source, value)
        groups.setdefault(root, []).append(value)
    found = []
    for root, values in groups.items():
        size = max(sizes.get(v.name or "", value_bytes(v)) for v in values)
        ends = [_life(value, step_of, len(nodes)) for value in values]
        first, last = min(a for a, _ in ends), max(b for _, b in ends)
        names = tuple(value.name or "" for value in values[1:])
        size = -(-size // alignment) * alignment
        found.append(Buffer(root.name or "", size, first, last, 0, names))
    return found


def _viewed(value: ir.Value, sizes: dict[str, int]) -> ir.Value | None:
    """The value whose bytes ``value`` is, or ``None`` where it has its own.

    An output has its own beside an input, and where padding gives it other strides.
    """
    node = value.producer()
    if node is None or node.domain != "" or node.op_type not in VIEWS:
        return None
    source = node.inputs[0]
    if source is None or source.const_value is not None or value_bytes(value) == 0:
        return None
    padded = any(sizes.get(v.name or "", value_bytes(v)) != value_bytes(v) for v in (value, source))
    return None if padded or value.is_graph_output() else source


def lower_bound(buffers: Sequence[Buffer]) -> int:
    """The most bytes that are alive at one step."""
    change: dict[int, int] = {}
    for buffer in buffers:
        change[buffer.first] = change.get(buffer.first, 0) + buffer.size
        change[buffer.last + 1] = change.get(buffer.last + 1, 0) - buffer.size
    alive = most = 0
    for step in sorted(change):
        alive += change[step]
        most = max(most, alive)
    return most


def _place(buffers: Sequence[Buffer], strategy: str) -> list[Buffer]:
    if strategy == "none":
        return _one_after_the_other(buffers)
    if strategy == "order":
        return _greedy(buffers, lambda b: (b.first,))
    orders: tuple[Callable[[Buffer], tuple[int, ...]], ...] = (
        lambda b: (-b.size, b.first),
        lambda b: (-b.size * (b.last - b.first + 1), b.first),
        lambda b: (b.first - b.last, -b.size),
        lambda b: (b.first,),
    )
    plans = [_greedy(buffers, order) for order in orders]
    return min(plans, key=lambda plan: max((b.offset + b.size for b in plan), default=0))


def _one_after_the_other(buffers: Sequence[Buffer]) -> list[Buffer]:
    placed, offset = [], 0
    for buffer in buffers:
        placed.append(_at(buffer, offset))
        offset += buffer.size
    return placed


def _greedy(buffers: Sequence[Buffer], order: Callable[[Buffer], tuple[int, ...]]) -> list[Buffer]:
    placed: list[Buffer] = []
    for buffer in sorted(buffers, key=order):
        placed.append(_at(buffer, _best_gap(placed, buffer)))
    return placed


def _best_gap(placed: Sequence[Buffer], wanted: Buffer) -> int:
    """The offset of the smallest gap that takes ``wanted`` while it lives; else behind all."""
    rivals = sorted(
        (b for b in placed if b.first <= wanted.last and wanted.first <= b.last),
        key=lambda b: b.offset,
    )
    end, best, smallest = 0, None, None
    for rival in rivals:
        gap = rival.offset - end
        if gap >= wanted.size and (smallest is None or gap < smallest):
            best, smallest = end, gap
        end = max(end, rival.offset + rival.size)
    return end if best is None else best


def _at(buffer: Buffer, offset: int) -> Buffer:
    return replace(buffer, offset=offset)


def _life(value: ir.Value, step_of: dict[ir.Node, int], end: int) -> tuple[int, int]:
    maker = value.producer()
    first = -1 if maker is None else step_of[maker]
    last = max((step_of[use.node] for use in value.uses()), default=first)
    return first, end if value.is_graph_output() else last


def _ports(graph: ir.Graph, padding: Padding) -> list[Port]:
    found: list[Port] = []
    for kind, values, row in (
        ("input", graph.inputs, padding.inputs),
        ("output", graph.outputs, padding.outputs),
    ):
        found.extend(_port(value, kind, row) for value in values)
    return found


def _port(value: ir.Value, kind: str, row: int) -> Port:
    shape = _static_shape(value)
    item = 1 if value.dtype is None else int(value.dtype.itemsize)
    strides: list[int] = []
    step = item
    inner = 2 if len(shape) > 2 and shape[-1] <= PIXEL_CHANNELS else 1
    for place, size in enumerate(reversed(shape), start=1):
        strides.insert(0, step)
        step *= size
        if place == inner and len(shape) > inner:
            step = -(-step // row) * row
    dtype = "" if value.dtype is None else str(value.dtype.numpy())
    return Port(value.name or "", kind, shape, dtype, tuple(strides), step)


def _static_shape(value: ir.Value) -> tuple[int, ...]:
    if value.shape is None or not value.shape.is_static():
        return ()
    return tuple(int(size) for size in value.shape.numpy())


def value_bytes(value: ir.Value) -> int:
    """Bytes of a value with a static shape, else 0."""
    if value.dtype is None or value.shape is None or not value.shape.is_static():
        return 0
    return int(prod(_static_shape(value)) * value.dtype.itemsize)
