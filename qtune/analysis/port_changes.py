"""How a change of the value at one port of a model is brought into a run of its plan."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, fx

from qtune.analysis.ablation import (
    OUTPUT,
    OWN,
    WEIGHT,
    AnyPort,
    Transform,
    in_own_state,
    own,
    switched_on,
    variant,
)
from qtune.analysis.downstream import Baseline, Change
from qtune.analysis.plan import DirectOp, Plan, has_hooks
from qtune.nn.table import TableOp
from qtune.ops.gemm.channels import channel_unview, channel_view
from qtune.ops.spec import Rule

Changes = dict[fx.Node, Change]


class PortChanges:
    """The changes at ``port``, whose operator is called at ``calls``.

    ``operand``: where the value enters a kernel, ``None`` for a result.
    """

    def __init__(self, plan: Plan, port: AnyPort, calls: Sequence[fx.Node]) -> None:
        self.plan = plan
        self.port = port
        self.calls = list(calls)
        self.operand: int | None = None
        if port.kind == WEIGHT:
            self.operand = port.op.weight_index
        elif port.kind != OUTPUT:
            self.operand = int(port.kind.partition("-")[2])
        self._direct = {node: plan.direct[node] for node in calls if node in plan.direct}

    def value(self, baseline: Baseline) -> Tensor | None:
        """The baseline's value at the port; ``None`` where it has several, or none is known."""
        if not self._by_value:
            return None
        first = self.calls[0]
        if self.operand is None:
            found = baseline.value(first) if len(self.calls) == 1 else None
        else:
            direct = self._direct[first]
            single = len(self.calls) == 1 or self.operand in direct.params
            found = direct.operand(baseline.registers, self.operand) if single else None
        return found if isinstance(found, Tensor) else None

    def transform(self, name: str) -> Transform:
        """What the variant ``name`` makes of the value, in the value's own form."""
        function = own(self.port) if name == OWN else variant(self.port, name)
        if self.port.kind != WEIGHT:
            return function
        attrs = next(iter(self._direct.values())).attrs
        groups = self.port.op.weight_groups(attrs)
        return lambda w: self.plan.formatted(
            channel_unview(function(channel_view(w, groups)), groups)
        )

    def is_by_value(self, name: str) -> bool:
        """Whether the variant is a function of the value at the port, no state of the module."""
        # the result of a look-up table is no function of the float result
        is_table = self.port.op.spec.rule is Rule.TABLE or isinstance(self.port.op, TableOp)
        is_own_table = name == OWN and self.operand is None and is_table
        follows_grids = name == OWN and bool(self.port.op.grid_sources)
        return self._by_value and not is_own_table and not follows_grids

    def by_value(self, transform: Transform) -> Changes:
        """Each call with ``transform`` of the value at the port."""
        operand = self.operand
        if operand is None:
            return dict.fromkeys(self.calls, _result_change(transform))
        return {
            node: _operand_change(self._direct[node], operand, transform) for node in self.calls
        }

    @contextmanager
    def by_module(self, name: str) -> Iterator[Changes]:
        """The calls through the modules, which compute the variant within the block."""
        switch = in_own_state(self.port)
        if name != OWN:
            switch = switched_on(self.port, variant(self.port, name))
        calls = {node: self.plan.module_call(node) for node in self.calls}
        with switch:
            yield {node: _call_change(call) for node, call in calls.items()}

    @property
    def _by_value(self) -> bool:
        if self.operand is None:
            return not any(has_hooks(module) for module in self.port.op.modules())
        return len(self._direct) == len(self.calls)


def _result_change(transform: Transform) -> Change:
    return lambda registers, compute: transform(compute(registers))


def _operand_change(direct: DirectOp, operand: int, transform: Transform) -> Change:
    def change(registers: Any, compute: Any) -> Any:
        value = transform(direct.operand(registers, operand))
        return direct(registers, {operand: value})

    return change


def _call_change(call: Any) -> Change:
    return lambda registers, compute: call(registers)
