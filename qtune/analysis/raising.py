"""Raise stubs of a calibrated model to int16 for a moment, as ``prepare`` would give them.

``resolve`` is asked again with the stubs among its rules, so that what the search measures is what
a model prepared with them computes. Stubs that the march, the operator or another rule keeps are
refused with that reason.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from qtune.analysis.ablation import Port, all_ports
from qtune.capture.restore import to_the_end
from qtune.dtype import QuantDType, qint16
from qtune.errors import AnalysisError
from qtune.nn.prepared import PreparedModel
from qtune.qconfig.plan import Basis, PortPlan, Resolution
from qtune.qconfig.resolve import resolve_with
from qtune.qconfig.sensitivity import Entry, SensitiveOps
from qtune.quantizers.fake_quantize import FakeQuantize
from qtune.quantizers.state import FakeQuantState

SOURCE = "tune"
_MOST_NEEDED = 8
"""How many look-up tables in a row are followed back to what makes their operand."""
_log = logging.getLogger("qtune.analysis")


@dataclass(frozen=True, slots=True)
class Raised:
    """What raising some stubs makes of a model.

    ``entries``: the stubs, with those that come with them: a constant beside a raised operand, what
    makes the operand of a raised look-up table. ``changed``: those that get another dtype;
    ``gone``: those that the model has no longer. ``resolution``: the decisions behind it, empty
    where they could not be asked for.
    """

    entries: tuple[Entry, ...] = ()
    changed: Mapping[Entry, PortPlan | None] = field(default_factory=dict)
    gone: frozenset[Entry] = frozenset()
    resolution: Resolution = Resolution({}, ())


@dataclass(frozen=True, slots=True)
class _Before:
    """One fake-quantize as it was."""

    dtype: QuantDType
    state: FakeQuantState
    tensors: Mapping[str, Tensor]

    @classmethod
    def of(cls, quantizer: FakeQuantize) -> _Before:
        own = {**dict(quantizer.named_parameters()), **dict(quantizer.named_buffers())}
        kept = {name: tensor.detach().clone() for name, tensor in own.items()}
        return cls(quantizer.dtype, quantizer.state, kept)

    def give_back(self, quantizer: FakeQuantize) -> None:
        if quantizer.dtype != self.dtype:
            quantizer.set_dtype(self.dtype)
        quantizer.state = self.state
        with torch.no_grad():
            for name, tensor in (*quantizer.named_parameters(), *quantizer.named_buffers()):
                tensor.copy_(self.tensors[name])


class Raising:
    """Sets of stubs of ``model`` at int16, one after the other; :meth:`kept_back` undoes them.

    ``casts``: places that round to float16, which have no statistics for a scale.
    """

    def __init__(self, model: PreparedModel) -> None:
        known = {(p.op.name, p.kind): p for p in all_ports(model)}
        self.ports: dict[Entry, Port] = {e: p for e, p in known.items() if isinstance(p, Port)}
        self.casts = frozenset(known.keys() - self.ports.keys())
        self._basis = None if model.resolution is None else model.resolution.basis
        self.nothing = Raised(resolution=model.resolution or Resolution({}, ()))
        self._before: dict[Entry, _Before] = {}
        if self._basis is None:
            _log.warning(
                "tune: this model does not know how it was configured (it was pickled); whether "
                "the march takes int16 at a stub is not asked. Prepare it again and load its state"
            )

    def plan(self, entries: Sequence[Entry]) -> Raised | str:
        """What raising these stubs does, or why the model can't have it."""
        if self._basis is None:
            return Raised(tuple(entries), dict.fromkeys(entries))
        if not entries:
            return self.nothing
        asked, before = list(entries), _port_plans(self.nothing.resolution)
        for _ in range(_MOST_NEEDED):
            found = resolve_with(self._basis, [SensitiveOps(tuple(asked), SOURCE).raised(qint16)])
            after = _port_plans(found)
            needed = _needed(asked, after.keys() - before.keys())
            if not needed:
                break
            asked += needed
        reason = self._objection(entries, found, after.keys() - before.keys())
        if reason:
            return reason
        changed = {
            entry: plan
            for entry, plan in after.items()
            if entry in before and _grid(plan) != _grid(before[entry])
        }
        gone = frozenset(before.keys() - after.keys())
        for name, port in sorted({*changed, *gone} - self.ports.keys()):
            was, now = before[name, port].dtype, after.get((name, port))
            to = "not be rounded" if now is None else f"be {now.dtype}"
            return f"{name} {port} is {was}, has no statistics, and would {to} then"
        with_it = [entry for entry in self.ports if entry in changed and entry not in entries]
        return Raised((*entries, *with_it), changed, gone, found)

    def _objection(self, entries: Sequence[Entry], found: Resolution, appeared: Set[Entry]) -> str:
        if found.refused:
            return f"{found.refused[0].name}: {found.refused[0].reason}"
        for name, plan in found.plans.items():
            was_float = self.nothing.resolution.plans[name].float_reason is not None
            if plan.float_reason is not None and not was_float:
                return f"{name} would stay float: {plan.float_reason}"
        after = _port_plans(found)
        for entry in entries:
            if entry in after and after[entry].dtype != qint16:
                return _why(found, entry) or f"another rule keeps it {after[entry].dtype}"
        for name, port in appeared:
            because = _why(found, (name, port))
            return f"{name} {port} would be quantized on its own" + (because and f": {because}")
        return ""

    def apply(self, raised: Raised) -> None:
        """Bring the model to ``raised``; what an earlier call changed otherwise goes back."""
        wanted = {*raised.changed, *raised.gone}
        for entry in [known for known in self._before if known not in wanted]:
            self._give_back(entry)
        for entry in wanted - self._before.keys():
            quantizer = self.ports[entry].fake_quantize
            self._before[entry] = _Before.of(quantizer)
            if entry in raised.gone:
                quantizer.state = FakeQuantState._FLOAT
            else:
                _raise(quantizer, raised.changed[entry])

    @contextmanager
    def kept_back(self) -> Iterator[Raising]:
        """Give every stub its dtype, state and, bit for bit, its scale back at the end."""
        try:
            yield self
        finally:
            to_the_end(self._give_all_back)

    def _give_all_back(self) -> None:
        for entry in list(self._before):
            self._give_back(entry)

    def _give_back(self, entry: Entry) -> None:
        self._before[entry].give_back(self.ports[entry].fake_quantize)
        del self._before[entry]  # it stays known until all of it is back


def basis_of(model: PreparedModel) -> Basis:
    """What the model was configured from; ``AnalysisError`` where it was pickled since."""
    basis = None if model.resolution is None else model.resolution.basis
    if basis is None:
        raise AnalysisError(
            "tune: this model does not know how it was configured (it was pickled); prepare it "
            "again and load its state"
        )
    return basis


def _needed(asked: Sequence[Entry], appeared: Set[Entry]) -> list[Entry]:
    """Operands of raised operators that would be requantized: what makes them is raised instead."""
    names = {name for name, _ in asked}
    inputs = [entry for entry in appeared if entry[1].startswith("input") and entry[0] in names]
    return [entry for entry in inputs if entry not in asked]


def _raise(quantizer: FakeQuantize, plan: PortPlan | None) -> None:
    quantizer.set_dtype(qint16)
    if plan is not None and plan.scale is not None:  # QuantStub(scale=...): on whatever dtype
        quantizer.set_qparams(plan.scale)


def _port_plans(resolution: Resolution) -> dict[Entry, PortPlan]:
    """Every fake-quantize that a model gets, by operator and port."""
    found: dict[Entry, PortPlan] = {}
    for name, plan in resolution.plans.items():
        single = {"output": plan.output, "weight": plan.weight}
        found |= {(name, port): own for port, own in single.items() if own is not None}
        found |= {(name, f"input-{index}"): own for index, own in plan.inputs.items()}
    return found


def _grid(plan: PortPlan) -> Any:
    return plan.dtype, plan.scale


def _why(resolution: Resolution, entry: Entry) -> str:
    """The reason of a decision that did not give what was asked."""
    return next(
        (d.reason for d in resolution.explanation if (d.name, d.port) == entry and d.corrected), ""
    )
