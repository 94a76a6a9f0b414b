"""Static performance estimate: a roofline, operator by operator.

An operator's cycles are those of its multiply-adds or of its memory traffic, whichever are more,
plus those of the vector unit that requantizes its results:

* multiply-adds: an int16 operand doubles them (two halves), two int16 operands take four times;
* traffic: constants, operands and results through DDR. What does not fit into the working memory is
  read several times. With double buffering transfer and arithmetic overlap, but only half of that
  memory is left; ``balance`` decides which of the two ways an operator goes;
* what only names the same bytes anew (a reshape) costs nothing;
* vector unit: one pass over the results where they are requantized with a 15-bit multiplier, half
  of one where all multipliers are powers of two (a shift), two with 31 bits, one for any other
  arithmetic, none for data that only moves.

The march's figures are data (``qtune.bpu.hardware``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from math import ceil
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx_ir as ir

from qtune.bpu.hardware import Hardware, hardware
from qtune.bpu.memory import VIEWS, Buffer, lives, value_bytes
from qtune.hbir.builder import META_FLOPS, META_OP
from qtune.hbir.domain import DOMAIN, schema
from qtune.ops.registry import specs

INT16_COST: Mapping[int, int] = MappingProxyType({0: 1, 1: 2, 2: 4})
"""int16 operands of a GEMM -> cost of a multiply-add."""

SHIFT_PASSES, NARROW_PASSES, WIDE_PASSES = 0.5, 1.0, 2.0
"""Passes of the vector unit: powers of two, 15-bit multipliers, 31-bit multipliers."""

NARROW_LIMIT = 1 << 15
"""Multipliers of 15 bits are below; numerics.md section 2.3."""


@dataclass(frozen=True, slots=True)
class OperatorCost:
    """One operator. ``bytes``: DDR traffic. ``bound``: what its cycles are made of most.

    ``macs`` counts multiply-adds of GEMMs; ``share`` is its part of the whole time.
    """

    op: str
    type: str
    macs: int
    bytes: int
    cycles: float
    latency_us: float
    bound: str
    double_buffered: bool
    share: float = 0.0


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """A part of the program that runs without interruption (``max_time_per_fc``)."""

    first: str
    last: str
    operators: int
    latency_us: float


@dataclass(frozen=True, slots=True)
class Estimate:
    """All operators of a function on a march, and the assumptions behind the figures."""

    march: str
    operators: tuple[OperatorCost, ...]
    latency_us: float
    cycles: float
    macs: int
    bytes: int
    function_calls: tuple[FunctionCall, ...] = ()
    l2m_bytes: int = 0
    hardware: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """The estimate as plain values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class _Work:
    """What one node asks for."""

    mac_cycles: float
    vector_cycles: float
    inputs: int
    constants: int
    outputs: int
    macs: int


def estimate(
    model: ir.Model,
    march: str,
    balance: int = 100,
    l2m_bytes: int = 0,
    max_time_per_fc: float = 0.0,
) -> Estimate:
    """Estimate a quantized module on a march."""
    machine = hardware(march)
    resident = _resident(model.graph, l2m_bytes)
    order: dict[str, list[ir.Node]] = {}
    for node in model.graph:
        order.setdefault(node.metadata_props.get(META_OP, node.name or ""), []).append(node)
    costs = [_cost(op, nodes, machine, balance, resident) for op, nodes in order.items()]
    cycles = sum(cost.cycles for cost in costs)
    shared = tuple(_with_share(cost, cycles) for cost in costs)
    return Estimate(
        march,
        shared,
        1e6 * cycles / machine.clock_hz,
        cycles,
        sum(cost.macs for cost in costs),
        sum(cost.bytes for cost in costs),
        tuple(_function_calls(shared, max_time_per_fc)),
        l2m_bytes,
        machine.to_dict(),
    )


def _with_share(cost: OperatorCost, cycles: float) -> OperatorCost:
    values = asdict(cost)
    values["share"] = cost.cycles / cycles if cycles else 0.0
    return OperatorCost(**values)


def _cost(
    op: str, nodes: Sequence[ir.Node], machine: Hardware, balance: int, resident: frozenset[str]
) -> OperatorCost:
    macs = traffic = 0
    cycles = arithmetic = vector = 0.0
    double = False
    flops = _flops_by_gemm(nodes)
    for node in nodes:
        work = _work(node, machine, resident, flops.get(node, 0))
        moved, spent, double = _transfer(work, machine, balance)
        macs, traffic = macs + work.macs, traffic + moved
        cycles += spent + work.vector_cycles
        arithmetic, vector = arithmetic + work.mac_cycles, vector + work.vector_cycles
    memory = traffic / machine.bytes_per_cycle
    parts = {"memory": memory, "macs": arithmetic, "vector": vector}
    bound = max(parts, key=lambda key: parts[key])
    kind = f"{nodes[-1].domain or 'onnx'}::{nodes[-1].op_type}"
    latency = 1e6 * cycles / machine.clock_hz
    return OperatorCost(op, kind, macs, traffic, cycles, latency, bound, double)


def _transfer(work: _Work, machine: Hardware, balance: int) -> tuple[int, float, bool]:
    """Bytes and cycles of the better of both ways to use the working memory."""
    ways = []
    for double in (True, False):
        memory = machine.on_chip_bytes // (2 if double else 1)
        moved = _traffic(work, memory)
        transfer = moved / machine.bytes_per_cycle
        cycles = max(work.mac_cycles, transfer) if double else work.mac_cycles + transfer
        weighted = balance * cycles + (100 - balance) * transfer
        ways.append((weighted, cycles, moved, double))
    _, cycles, moved, double = min(ways)
    return moved, cycles, double


def _traffic(work: _Work, memory: int) -> int:
    """Bytes through DDR: either the constants or the operands stay, part by part."""
    x, w, y = work.inputs, work.constants, work.outputs
    if x + w + y <= memory:
        return x + w + y
    room = max(memory // 2, 1)
    return min(x * max(ceil(w / room), 1) + w, x + w * max(ceil(x / room), 1)) + y


def _work(node: ir.Node, machine: Hardware, resident: frozenset[str], macs: int) -> _Work:
    if node.op_type in VIEWS and node.domain == "":
        return _Work(0.0, 0.0, 0, 0, 0, 0)
    constants = [v for v in node.inputs if v is not None and v.const_value is not None]
    operands = [v for v in node.inputs if v is not None and v.const_value is None]
    family = families().get((node.domain, node.op_type), "")
    wide = sum(_is_int16(v) for v in node.inputs[:2])
    elements = sum(_elements(v) for v in node.outputs)
    return _Work(
        macs * INT16_COST[wide] / machine.macs_per_cycle,
        elements * _passes(node, family) / machine.vector_lanes,
        sum(_outside(v, resident) for v in operands),
        sum(value_bytes(v) for v in constants),
        sum(_outside(v, resident) for v in node.outputs),
        macs,
    )


def _flops_by_gemm(nodes: Sequence[ir.Node]) -> dict[ir.Node, int]:
    """The multiply-adds of an operator, noted on its result, by the GEMM node that does them."""
    gemms = [n for n in nodes if families().get((n.domain, n.op_type)) == "gemm"]
    if not gemms:
        return {}
    return {gemms[0]: sum(int(n.metadata_props.get(META_FLOPS, "0")) for n in nodes)}


def _passes(node: ir.Node, family: str) -> float:
    multipliers = _multipliers(node)
    if multipliers is None:
        return 0.0 if family in ("movement", "quant", "") and node.domain != DOMAIN else 1.0
    magnitude = np.abs(multipliers.astype(np.int64))
    if (magnitude >= NARROW_LIMIT).any():
        return WIDE_PASSES
    return SHIFT_PASSES if not (magnitude & (magnitude - 1)).any() else NARROW_PASSES


def _multipliers(node: ir.Node) -> np.ndarray[Any, Any] | None:
    """All multipliers (``m``, ``ma``, ``m_addend``, ...) of an integer node."""
    if node.domain != DOMAIN:
        return None
    names = schema(node.op_type).inputs
    found = [
        value.const_value.numpy().reshape(-1)
        for name, value in zip(names, node.inputs, strict=False)
        if name.startswith("m") and value is not None and value.const_value is not None
    ]
    return np.concatenate(found) if found else None


@cache
def families() -> Mapping[tuple[str, str], str]:
    """(domain, op_type) -> family of the operator that owns it."""
    return MappingProxyType(
        {
            (kernel.domain, kernel.op_type): spec.family
            for spec in specs().values()
            for kernel in spec.kernels
        }
    )


def _outside(value: ir.Value, resident: frozenset[str]) -> int:
    return 0 if value.name in resident else value_bytes(value)


def _elements(value: ir.Value) -> int:
    size = 1 if value.dtype is None else max(int(value.dtype.itemsize), 1)
    return value_bytes(value) // size


def _is_int16(value: ir.Value | None) -> bool:
    return value is not None and value.dtype == ir.DataType.INT16


def _resident(graph: ir.Graph, l2m_bytes: int) -> frozenset[str]:
    """Activations kept in the L2M cache: the smallest first, while all that live together fit."""
    if not l2m_bytes:
        return frozenset()
    ports = {value.name for value in (*graph.inputs, *graph.outputs)}
    buffers = [b for b in lives(graph, 1, {}) if ports.isdisjoint((b.name, *b.views))]
    load = [0] * (len(list(graph)) + 2)
    kept: set[str] = set()
    for buffer in sorted(buffers, key=lambda b: (b.size, b.first)):
        if _fits(load, buffer, l2m_bytes):
            kept.update((buffer.name, *buffer.views))
    return frozenset(kept)


def _fits(load: list[int], buffer: Buffer, limit: int) -> bool:
    steps = range(buffer.first + 1, buffer.last + 2)
    if any(load[step] + buffer.size > limit for step in steps):
        return False
    for step in steps:
        load[step] += buffer.size
    return True


def _function_calls(costs: Sequence[OperatorCost], limit_us: float) -> list[FunctionCall]:
    """Consecutive operators of at most ``limit_us`` together; a longer one is alone."""
    groups: list[list[OperatorCost]] = []
    spent = 0.0
    for cost in costs:
        if not groups or (limit_us and spent + cost.latency_us > limit_us):
            groups.append([])
            spent = 0.0
        groups[-1].append(cost)
        spent += cost.latency_us
    return [
        FunctionCall(g[0].op, g[-1].op, len(g), sum(cost.latency_us for cost in g)) for g in groups
    ]
