"""Static performance estimate: arithmetic against memory traffic, operator by operator.

Deliberately simple: an operator takes as long as the slower of its multiply-adds at the march's
int8 peak and its bytes at ``BANDWIDTH``. It ranks operators; it is no measurement.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import onnx_ir as ir

from qtune.bpu.memory import value_bytes
from qtune.hbir.builder import META_FLOPS, META_OP
from qtune.march import as_march

BANDWIDTH = 50e9
"""Bytes per second between memory and BPU; an assumption, the documents publish no figure."""

INT16_COST = 4
"""An int16 multiply-add counts as this many int8 ones (two halves on each side)."""


@dataclass(frozen=True, slots=True)
class OperatorCost:
    """Multiply-adds, bytes read and written, and microseconds of one operator."""

    op: str
    macs: int
    bytes: int
    latency_us: float | None


@dataclass(frozen=True, slots=True)
class Estimate:
    """All operators; ``latency_us`` is ``None`` where the march's peak is unpublished."""

    march: str
    operators: tuple[OperatorCost, ...]
    latency_us: float | None

    def to_dict(self) -> dict[str, Any]:
        """The estimate as plain values."""
        return asdict(self)


def estimate(model: ir.Model, march: str) -> Estimate:
    """Estimate a quantized module on a march."""
    tops = as_march(march).limits.tops
    order: dict[str, list[ir.Node]] = {}
    for node in model.graph:
        order.setdefault(node.metadata_props.get(META_OP, node.name or ""), []).append(node)
    operators = tuple(_cost(op, nodes, tops) for op, nodes in order.items())
    total = None if tops is None else sum(item.latency_us or 0.0 for item in operators)
    return Estimate(march, operators, total)


def _cost(op: str, nodes: list[ir.Node], tops: float | None) -> OperatorCost:
    macs = sum(int(node.metadata_props.get(META_FLOPS, "0")) for node in nodes)
    traffic = sum(_traffic(node) for node in nodes)
    if tops is None:
        return OperatorCost(op, macs, traffic, None)
    wide = any(_is_int16(value) for node in nodes for value in node.inputs)
    arithmetic = 2 * macs * (INT16_COST if wide else 1) / (tops * 1e12)
    return OperatorCost(op, macs, traffic, 1e6 * max(arithmetic, traffic / BANDWIDTH))


def _traffic(node: ir.Node) -> int:
    values = [*(v for v in node.inputs if v is not None), *node.outputs]
    return sum(value_bytes(value) for value in values)


def _is_int16(value: ir.Value | None) -> bool:
    return value is not None and value.dtype == ir.DataType.INT16
