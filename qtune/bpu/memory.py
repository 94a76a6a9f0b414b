"""Static memory plan of a quantized function: where each activation lies, how long it lives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import onnx_ir as ir

ALIGNMENT = 64
"""Bytes; every buffer starts at a multiple."""


@dataclass(frozen=True, slots=True)
class Buffer:
    """One activation: bytes from ``offset`` on, alive from step ``first`` to step ``last``."""

    name: str
    size: int
    first: int
    last: int
    offset: int


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Offsets of all activations in one arena, and the bytes of the constants beside it."""

    buffers: tuple[Buffer, ...]
    arena_bytes: int
    constant_bytes: int

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain values."""
        return asdict(self)


def plan_memory(graph: ir.Graph) -> MemoryPlan:
    """Place every activation of ``graph``: the largest first, at the lowest free offset."""
    nodes = list(graph)
    step_of = {node: index for index, node in enumerate(nodes)}
    values = [*graph.inputs, *(value for node in nodes for value in node.outputs)]
    lives = [_life(value, step_of, len(nodes)) for value in values]
    order = sorted(range(len(values)), key=lambda i: (-value_bytes(values[i]), i))
    placed: list[Buffer] = []
    for index in order:
        first, last = lives[index]
        size = -(-value_bytes(values[index]) // ALIGNMENT) * ALIGNMENT
        offset = _lowest_gap(placed, first, last, size)
        placed.append(Buffer(values[index].name or "", size, first, last, offset))
    arena = max((buffer.offset + buffer.size for buffer in placed), default=0)
    constants = sum(value_bytes(value) for value in graph.initializers.values())
    return MemoryPlan(tuple(sorted(placed, key=lambda b: (b.first, b.offset))), arena, constants)


def _life(value: ir.Value, step_of: dict[ir.Node, int], end: int) -> tuple[int, int]:
    maker = value.producer()
    first = -1 if maker is None else step_of[maker]
    last = max((step_of[use.node] for use in value.uses()), default=first)
    return first, end if value.is_graph_output() else last


def _lowest_gap(placed: Sequence[Buffer], first: int, last: int, size: int) -> int:
    """The lowest offset where ``size`` bytes are free from step ``first`` to ``last``."""
    rivals = sorted(
        (b for b in placed if b.first <= last and first <= b.last), key=lambda b: b.offset
    )
    offset = 0
    for rival in rivals:
        if offset + size <= rival.offset:
            break
        offset = max(offset, rival.offset + rival.size)
    return offset


def value_bytes(value: ir.Value) -> int:
    """Bytes of a value with a static shape, else 0."""
    if value.dtype is None or value.shape is None or not value.shape.is_static():
        return 0
    count = 1
    for size in value.shape.numpy():
        count *= int(size)
    return int(count * value.dtype.itemsize)
