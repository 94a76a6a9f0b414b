"""Which operators are quantized.

Without QuantStub every known operator on floating data is; with stubs only what lies between
QuantStub and DeQuantStub (or everything all the same, if ``strip`` is off).
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from torch import fx

from qtune.capture.branches import is_aside
from qtune.hbir.example import is_factory
from qtune.nn.prepared import OUTSIDE_STUBS
from qtune.nn.qat import QATOp
from qtune.ops.spec import ModuleTarget, OpSpec
from qtune.prepare.operators import (
    FLOAT_REASON,
    Operators,
    has_float_result,
    has_tensor_result,
    is_structural,
)

QUANT = "quant_stub"
DEQUANT = "dequant_stub"
"""The two operators of the registry that stand at the border of the quantized region."""

FROM_PLAIN = "it makes numbers of a mask or of integers; the operator behind it quantizes them"


class Kind(enum.Enum):
    """What a value is."""

    PLAIN = "no floating-point tensor"
    CONSTANT = "computed from parameters and constants only"
    OUTSIDE = "float, not computed from quantized values"
    INSIDE = "float, computed from quantized values"
    QUANTIZED = "quantized"


FLOAT_KINDS = (Kind.OUTSIDE, Kind.INSIDE)


@dataclass(slots=True)
class Region:
    """``kinds``: of every value. ``quantized``: the operators on quantized values.
    ``reasons``: why the other floating operators are float, by operator name.
    """

    kinds: dict[fx.Node, Kind] = field(default_factory=dict)
    quantized: set[fx.Node] = field(default_factory=set)
    reasons: dict[str, str] = field(default_factory=dict)


class _Classifier:
    def __init__(self, ops: Operators, forced: Mapping[str, str], strip: bool) -> None:
        self.ops = ops
        self.forced = forced
        names = {op.op for node in ops.graph.nodes if (op := ops.op(node)) is not None}
        self.strip = strip and QUANT in names
        self.data: set[fx.Node] = set()
        self.region = Region()

    def run(self) -> Region:
        for node in self.ops.graph.nodes:
            depends = any(n in self.data for n in _tensor_inputs(node))
            if node.op == "placeholder" or (depends and not is_factory(node)):
                self.data.add(node)
            self.region.kinds[node] = self._kind(node)
        return self.region

    def _kind(self, node: fx.Node) -> Kind:
        if node.op == "output" or not has_tensor_result(node):
            return Kind.PLAIN
        if is_aside(node):  # what only training has is no part of the quantized region
            return Kind.OUTSIDE if has_float_result(node) else Kind.PLAIN
        if node.op == "placeholder":
            return Kind.OUTSIDE if has_float_result(node) else Kind.PLAIN
        if node.op == "get_attr":
            return Kind.CONSTANT if has_float_result(node) else Kind.PLAIN
        if is_structural(node):
            return self._of(node.args[0]) if has_float_result(node) else Kind.PLAIN
        return self._call_kind(node)

    def _call_kind(self, node: fx.Node) -> Kind:
        op = self.ops.op(node)
        if op is not None and op.op == DEQUANT:
            self.region.quantized.add(node)
            return Kind.OUTSIDE
        reason = self._float_reason(node, op)
        if reason is None:
            self.region.quantized.add(node)
            return Kind.QUANTIZED if has_float_result(node) else Kind.PLAIN
        if reason:
            self.region.reasons.setdefault(node.meta["name"], reason)
        if not has_float_result(node):
            return Kind.PLAIN
        if node not in self.data:
            return Kind.CONSTANT
        inside = (Kind.QUANTIZED, Kind.INSIDE)
        return Kind.INSIDE if any(k in inside for k in self._inputs(node)) else Kind.OUTSIDE

    def _float_reason(self, node: fx.Node, op: QATOp | None) -> str | None:
        """Why the call is float; ``""`` where nothing can be quantized, ``None`` if it is not."""
        kinds = set(self._inputs(node))
        floats = kinds - {Kind.PLAIN}
        if op is None:
            if is_factory(node) or node not in self.data:
                return ""  # a constant, whatever makes it
            return str(node.meta[FLOAT_REASON]) if floats or has_float_result(node) else ""
        if node.meta["name"] in self.forced:
            return self.forced[node.meta["name"]]
        if op.op == QUANT:
            return None
        if node not in self.data or not (floats or op.params):
            return FROM_PLAIN if node in self.data and has_float_result(node) else ""
        if self.strip and not floats & {Kind.QUANTIZED, Kind.INSIDE}:
            return OUTSIDE_STUBS
        return self._computed_parameter(node, op)

    def _computed_parameter(self, node: fx.Node, op: QATOp) -> str | None:
        """Parameters that are computed from data can't be quantized as such."""
        fixed = parameter_roles(op.spec)
        for role, value in zip(op.roles(len(node.args)), node.args, strict=True):
            if role in fixed and isinstance(value, fx.Node) and value in self.data:
                return f"its {role} is computed from data; a parameter or constant was expected"
        return None

    def _inputs(self, node: fx.Node) -> Iterator[Kind]:
        return (self._of(value) for value in _tensor_inputs(node))

    def _of(self, value: object) -> Kind:
        return self.region.kinds[value] if isinstance(value, fx.Node) else Kind.PLAIN


def classify(ops: Operators, forced: Mapping[str, str], *, strip: bool) -> Region:
    """Decide for every node what it is. ``forced``: operators that stay float, and why."""
    return _Classifier(ops, forced, strip).run()


def parameter_roles(spec: OpSpec) -> frozenset[str]:
    """Roles that parameters of a module fill: weight, bias, running statistics."""
    targets = (target for target in spec.targets if isinstance(target, ModuleTarget))
    return frozenset(role for target in targets for role in target.params)


def _tensor_inputs(node: fx.Node) -> list[fx.Node]:
    return [value for value in node.all_input_nodes if has_tensor_result(value)]
