"""The ports of a prepared model as it is now: dtype, scale, and which rule decided."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import fx

from qtune.nn.prepared import PreparedModel
from qtune.nn.propagate import operand_port, value_ports
from qtune.nn.qat.op import QATOp
from qtune.ops.spec import Rule
from qtune.profiler.observe import operator_name, operator_of
from qtune.qconfig.dtypes import Float
from qtune.qconfig.plan import Decision
from qtune.quantizers.fake_cast import FakeCast
from qtune.quantizers.fake_quantize import FakeQuantize

_FLOAT = str(Float.PORT)


@dataclass(frozen=True, slots=True)
class ModelPort:
    """``op`` and ``kind`` (``output``, ``weight``, ``input-0``, ...) of a port.

    ``dtype``: what its values are. ``grid``: the fake-quantize or cast that makes them so, which
    may be that of another operator (``pool`` keeps the scale of its input). ``shape``: of a result,
    as prepare saw it. ``decision``: of the configuration, where it decided about this port.
    ``can_have_grid``: not of what is no number with a scale whatever the configuration says (an
    index, a mask), and where values enter and leave the quantized part.
    """

    op: str
    kind: str
    dtype: str
    grid: FakeQuantize | FakeCast | None
    shape: tuple[int, ...] | None = None
    decision: Decision | None = None
    can_have_grid: bool = True

    @property
    def name(self) -> str:
        """``head output``."""
        return f"{self.op} {self.kind}"

    @property
    def scale(self) -> float | None:
        """The scale, where there is one for the whole tensor."""
        return scale_of(self.grid)

    @property
    def decided(self) -> str:
        """Which rule of the configuration decided the dtype, and why."""
        if self.decision is None:
            name = "" if self.grid is None else self.grid.name
            return f"it comes as {name} gives it" if name else ""
        rule = f"decided by {self.decision.rule}" if self.decision.rule else ""
        asked = f"asked {self.decision.asked}" if self.decision.corrected else ""
        owner = "" if rule or self.grid is None else self.grid.name
        reason = f"{self.decision.reason} ({owner})" if owner else self.decision.reason
        return ": ".join(part for part in (rule, asked, reason) if part)


def scale_of(grid: FakeQuantize | FakeCast | None) -> float | None:
    """The scale of a fake-quantize that has one for the whole tensor."""
    if isinstance(grid, FakeQuantize) and grid.scale.numel() == 1:
        return float(grid.scale.detach())
    return None


def model_ports(model: PreparedModel) -> list[ModelPort]:
    """Every port in order of execution, those of each operator's first call.

    Operators that join a fused group have the group's result.
    """
    return list(_Ports(model).all())


class _Ports:
    """The ports of one model, with what they are looked up in."""

    def __init__(self, model: PreparedModel) -> None:
        self.model = model
        self.grids = value_ports(model)
        self.first = {operator_name(node): node for node in reversed(list(model.graph.nodes))}
        decisions = model.resolution.explanation if model.resolution else ()
        self.decisions = {(d.name, d.port): d for d in decisions}

    def all(self) -> Iterator[ModelPort]:
        for node in self.model.graph.nodes:
            name = operator_name(node)
            if name and self.first[name] is node:
                yield from self._before(name, node)
                yield self._output(name, node)

    def _before(self, name: str, node: fx.Node) -> Iterator[ModelPort]:
        """Operands and weight."""
        op = operator_of(self.model, node)
        if op is None:
            return
        for index, source in _operands(op, node):
            grid, kind = operand_port(op, node, index, self.grids), f"input-{index}"
            facts = grid, None, self._of(name, kind), grid is not None or not _is_border(op)
            yield ModelPort(name, kind, _dtype(grid, source), *facts)
        if op.weight_fake_quant is not None:
            grid = op.weight_fake_quant
            decision = self._of(name, "weight")
            yield ModelPort(name, "weight", str(grid.dtype), grid, None, decision)

    def _output(self, name: str, node: fx.Node) -> ModelPort:
        last = self.first.get(_group(node) or name, node)
        shape = tuple(last.meta.get("shape") or ()) or None
        decision = self._of(operator_name(last), "output")
        grid = self.grids.get(last)
        op = operator_of(self.model, last)
        has_none = grid is None and op is not None and op.spec.rule is Rule.NO_SCALE
        return ModelPort(name, "output", _dtype(grid, last), grid, shape, decision, not has_none)

    def _of(self, name: str, kind: str) -> Decision | None:
        return self.decisions.get((name, kind)) or self.decisions.get((name, "operator"))


def _is_border(op: QATOp) -> bool:
    return op.spec.family == "quant"


def _group(node: fx.Node) -> str:
    return str(node.meta.get("group") or "")


def _operands(op: QATOp, node: fx.Node) -> Iterator[tuple[int, fx.Node]]:
    """Operands that another operator or the model's inputs give, but none of the same group."""
    for index, role in enumerate(op.roles(len(node.args))):
        source = node.args[index]
        is_weight = role == op.spec.weight_role and op.weight_fake_quant is not None
        is_inside = isinstance(source, fx.Node) and _group(node) and _group(source) == _group(node)
        if isinstance(source, fx.Node) and not (is_weight or is_inside):
            yield index, source


def _dtype(grid: FakeQuantize | FakeCast | None, node: fx.Node) -> str:
    """The grid's dtype; without one that of the float model."""
    if grid is not None:
        return str(grid.dtype)
    return str(node.meta.get("dtype") or _FLOAT)
