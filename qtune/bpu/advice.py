"""Where each operator runs and why: violations, and the advice records of ``convert``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from qtune.bpu.context import STAYS_FLOAT, Note
from qtune.dtype import float16
from qtune.hbir.builder import META_DTYPE, META_OP, META_RESULT, META_SOURCE
from qtune.hbir.domain import DOMAIN
from qtune.hbir.verify import is_integer_node
from qtune.march import March

BPU, VPU, CPU = "bpu", "vpu", "external_cpu"
"""The documented values of ``backend`` that occur here."""

_BORDERS = ("Quantize", "QuantizeHalfEven", "Dequantize", "DequantizeAcc")


@dataclass(frozen=True, slots=True)
class Violation:
    """Why an operator can't be converted, with what to do about it."""

    op: str
    reason: str

    @classmethod
    def of(cls, op: str, text: str, known: Collection[str] = ()) -> Violation:
        """From a message, which may begin with the name of ``op`` or of another ``known`` one."""
        head, _, rest = text.partition(": ")
        return cls(head, rest) if head == op or head in known else cls(op, text)


def call_sites(source: ir.Model) -> dict[str, str]:
    """Where in the float model each operator is called, by its name: `` (model.py:12)``."""
    props = [node.metadata_props for node in source.graph]
    return {p[META_OP]: p[META_SOURCE] for p in props if META_OP in p and META_SOURCE in p}


def violation_lines(violations: Sequence[Violation], source: ir.Model) -> list[str]:
    """One line for each violation: operator, line of the model, reason and remedy."""
    places = call_sites(source)
    return [f"{item.op}{places.get(item.op, '')}: {item.reason}" for item in violations]


def float16_ops(graph: ir.Graph) -> frozenset[str]:
    """Operators that compute in float16: their result is held in it, or what they take."""
    return frozenset(
        node.metadata_props[META_OP]
        for node in graph
        if META_OP in node.metadata_props and _computes_in_float16(node)
    )


def _computes_in_float16(node: ir.Node) -> bool:
    if META_RESULT in node.metadata_props and is_float16_value(node.outputs[0]):
        return True
    is_border = node.op_type == "Cast" or "Quant" in node.op_type
    return not is_border and any(is_float16_value(value) for value in node.inputs)


def is_float16_value(value: ir.Value | None) -> bool:
    """Whether a float value was rounded to float16."""
    return value is not None and value.metadata_props.get(META_DTYPE) == str(float16)


def converted_items(
    model: ir.Model, notes: Sequence[Mapping[str, Any]], march: March
) -> list[dict[str, Any]]:
    """A record for each node of a converted module."""
    reasons = {note["op"]: note["message"] for note in notes if note["kind"] == STAYS_FLOAT}
    halves = float16_ops(model.graph)
    items = []
    for node in model.graph:
        op = node.metadata_props.get(META_OP, node.name or "")
        items.append(_item(node, op, *_place(node, op, reasons, halves, march)))
    return items


def _place(
    node: ir.Node, op: str, reasons: Mapping[str, str], halves: frozenset[str], march: March
) -> tuple[str, str]:
    if node.op_type == "DequantizeAcc" and march.limits.float16:
        return BPU, f"the GEMM unit of {march} gives float results"
    if is_border(_kind(node)):
        if march.limits.vpu:
            return VPU, "the border between float and integers"
        return CPU, f"the border between float and integers; {march} has no unit for it"
    if op in reasons:
        return CPU, reasons[op]
    if is_integer_node(node):
        return BPU, "integer kernel"
    if op in halves:
        return BPU, "float16 in the vector unit"
    return BPU, "no arithmetic on numbers with a scale"


def refused_items(
    source: ir.Model, violations: Sequence[Violation], notes: Sequence[Note]
) -> list[dict[str, Any]]:
    """A record for each violation, and one for each other operator of a module that is refused."""
    broken: dict[str, list[str]] = defaultdict(list)
    for violation in violations:
        broken[violation.op].append(violation.reason)
    floats = {note.op: note.message for note in notes if note.kind == STAYS_FLOAT}
    items = []
    for node in source.graph:
        op = node.metadata_props.get(META_OP, "")
        if META_RESULT in node.metadata_props:
            items += [_item(node, op, CPU, reason) for reason in broken.pop(op, [])] or [
                _item(node, op, CPU if op in floats else BPU, floats.get(op, "integer kernel"))
            ]
    items += [
        {"backend": CPU, "choice_reason": reason, "loc": op, "op": "", "tensor_names": []}
        for op, reasons in broken.items()
        for reason in reasons
    ]
    return items


def is_border(kind: str) -> bool:
    """Whether an operator, as the records name it, brings numbers to a grid or from it."""
    domain, _, op_type = kind.partition("::")
    return domain == DOMAIN and op_type in _BORDERS


def _kind(node: ir.Node) -> str:
    return f"{node.domain or 'onnx'}::{node.op_type}"


def _item(node: ir.Node, op: str, backend: str, reason: str) -> dict[str, Any]:
    return {
        "backend": backend,
        "choice_reason": reason,
        "loc": op,
        "op": _kind(node),
        "tensor_names": list(_names(node)),
    }


def _names(node: ir.Node) -> Iterator[str]:
    return (value.name or "" for value in node.outputs)
