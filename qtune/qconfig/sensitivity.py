"""Sensitivity tables as rules: the most sensitive ports get more bits."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from qtune.dtype import FloatDType, qint8, qint16
from qtune.errors import QconfigError
from qtune.ops.spec import Rule
from qtune.qconfig.dtypes import PortDType, port_dtype
from qtune.qconfig.plan import OpView
from qtune.qconfig.qconfig import QConfig
from qtune.qconfig.rules import Level, Setting, port_names, why_unmatched
from qtune.qconfig.sensitivity_rows import read_rows

KINDS: Mapping[str, tuple[str, ...]] = {
    "activation": ("output", "input"),
    "weight": ("weight",),
    "both": ("output", "input", "weight"),
}
"""``sensitive_type`` -> the kinds of ports it stands for."""

Entry = tuple[str, str]
"""An operator and one of its ports, as a row of a table names them."""


@dataclass(frozen=True)
class SensitiveOps:
    """The chosen entries of a sensitivity table, in its order. ``source``: who names them."""

    entries: tuple[Entry, ...]
    source: str

    @classmethod
    def of(
        cls,
        table: Any,
        limit: int | float | None,
        source: str,
        kinds: Sequence[str] = KINDS["activation"],
        low: PortDType = qint8,
    ) -> SensitiveOps:
        """The first ``limit`` entries (a share of them if it is a float) of ``kinds`` that are
        ``low`` now. ``limit`` ``None``: those that ``tune_bad_case`` raised.
        """
        rows, tuned = read_rows(table, source)
        found = [
            (name, port)
            for name, port, dtype in rows
            if port.partition("-")[0] in kinds and dtype in (None, str(low))
        ]
        if limit is None:
            if not tuned:
                raise QconfigError(
                    f"{source}: give a number or a share of entries; only a table of tune_bad_case "
                    "says by itself which ones to raise"
                )
            return cls(tuple(found), source)
        return cls(tuple(found[: _count(limit, len(found), source)]), source)

    def named(self, qconfig: QConfig) -> RaisedPorts:
        """The rule that gives these ports what ``qconfig`` says."""
        return RaisedPorts(self, qconfig, None)

    def raised(self, dtype: PortDType, *, may_be_empty: bool = False) -> RaisedPorts:
        """The rule that gives these ports ``dtype``."""
        return RaisedPorts(self, None, dtype, may_be_empty=may_be_empty)


@dataclass(frozen=True)
class RaisedPorts:
    """Gives the chosen ports another dtype, or what a qconfig says.

    What carries the codes must have the bits: for an input of an operator its producer is raised,
    and a raised result reaches the GEMMs behind it as it is. A result that leaves the model in
    high precision stays that. ``may_be_empty``: no port at all is a choice too, not a mistake.
    """

    chosen: SensitiveOps
    qconfig: QConfig | None
    dtype: PortDType | None
    ports: frozenset[Entry] = frozenset()
    may_be_empty: bool = False

    def bind(self, views: Sequence[OpView]) -> RaisedPorts:
        """The same with the ports of this model that have to change."""
        integers = not isinstance(self.dtype, FloatDType)  # a GEMM computes in integers
        return replace(self, ports=_Flow(views).ports(self.chosen.entries, gemms=integers))

    def settings(self, group: Sequence[OpView]) -> Iterator[Setting]:
        """The settings of a group's ports that have to change."""
        if any((view.name, "output") in self.ports for view in group):
            yield self._setting(group[-1].name, "output")
        for view in group:
            for port in port_names(view):
                if (view.name, port) in self.ports:
                    yield self._setting(view.name, port)

    def unmatched(self, views: Sequence[OpView], used: frozenset[str]) -> list[str]:
        """Entries that name no port of this model; the table, if none was chosen."""
        if not self.chosen.entries and not self.may_be_empty:
            return [f"{self.chosen.source}: no entry of its table is chosen"]
        known = {view.name: {"output", *port_names(view)} for view in views}
        return [
            f"{self.chosen.source} {name!r} {port}: {why_unmatched(name, views)}"
            for name, port in self.chosen.entries
            if port not in known.get(name, ())
        ]

    def _setting(self, name: str, port: str) -> Setting:
        return Setting(
            name, port, self.chosen.source, Level.GLOBAL, self.dtype, qconfig=self.qconfig
        )


class PortRaiser(ABC):
    """A rule that raises ports, whatever chose them: a template of ``QconfigSetter``, and a setter.

    As a setter alone it stands for the default one with these ports raised; in a tuple of setters
    it speaks for them only.
    """

    __slots__ = ()

    @abstractmethod
    def raised(self) -> RaisedPorts:
        """The ports and what they get."""

    def bind(self, views: Sequence[OpView]) -> RaisedPorts:
        """The rule for this model."""
        return self.raised().bind(views)

    def settings(self, group: Sequence[OpView]) -> Iterator[Setting]:
        """The settings of one group looked at alone."""
        return self.bind(group).settings(group)

    def unmatched(self, views: Sequence[OpView], used: frozenset[str]) -> list[str]:
        """Entries that name no port of this model."""
        return self.raised().unmatched(views, used)


@dataclass(frozen=True)
class SensitivityTemplate(PortRaiser):
    """The most sensitive ports get ``high_precision_dtype``.

    ``sensitive_table``: what ``QuantAnalysis.sensitivity`` returns for an output (a
    ``SensitivityTable``, several of them, or the old list of lists), a dict of them by output, what
    ``tune_bad_case`` returns, or the path of a saved ``.pt``. Its order counts; of several tables
    an entry's best place does. ``topk_or_ratio``: an integer is a number of entries, a float a
    share of them, rounded up; may be ``None`` for what ``tune_bad_case`` returns.
    ``sensitive_type``: ``activation``, ``weight`` or ``both``. Entries whose dtype is not
    ``low_precision_dtype`` in the table are left out.
    """

    sensitive_table: Any
    topk_or_ratio: int | float | None = None
    sensitive_type: str = "both"
    low_precision_dtype: Any = qint8
    high_precision_dtype: Any = qint16

    def __post_init__(self) -> None:
        self.raised()

    def raised(self) -> RaisedPorts:
        """The chosen ports; ``QconfigError`` for what is no table or no limit."""
        where = type(self).__name__
        if self.sensitive_type not in KINDS:
            raise QconfigError(
                f"{where}: sensitive_type must be one of {', '.join(KINDS)}, got "
                f"{self.sensitive_type!r}"
            )
        low = port_dtype(self.low_precision_dtype, f"{where}: low_precision_dtype")
        high = port_dtype(self.high_precision_dtype, f"{where}: high_precision_dtype")
        kinds = KINDS[self.sensitive_type]
        ops = SensitiveOps.of(self.sensitive_table, self.topk_or_ratio, where, kinds, low)
        return ops.raised(high)


class _Flow:
    """Which operators pass codes on to which."""

    def __init__(self, views: Sequence[OpView]) -> None:
        self._views = {view.name: view for view in views}
        self._groups: dict[str, list[OpView]] = {}
        for view in views:
            self._groups.setdefault(view.group or view.name, []).append(view)

    def ports(self, entries: Sequence[Entry], *, gemms: bool) -> frozenset[Entry]:
        """The entries, the producers of their inputs, and the inputs of GEMMs behind them."""
        known = [(name, port) for name, port in entries if name in self._views]
        outputs = {self._group(name) for name, port in known if port == "output"}
        outputs |= {source for entry in known if (source := self._producer(*entry))}
        behind = {
            (view.name, port)
            for view in self._views.values()
            if gemms and view.is_gemm
            for port in port_names(view)
            if self._producer(view.name, port) in outputs
        }
        rest = {(name, port) for name, port in known if port != "output"}
        return frozenset({(name, "output") for name in outputs} | behind | rest)

    def _group(self, name: str) -> str:
        return self._views[name].group or name

    def _producer(self, name: str, port: str) -> str:
        """The group whose codes an input carries, ``""`` where it is none's."""
        kind, _, index = port.partition("-")
        producers = self._views[name].producers
        if kind != "input" or int(index or 0) >= len(producers):
            return ""
        source = producers[int(index or 0)]
        while source in self._views:
            group = self._groups[self._group(str(source))]
            if any(view.rule in (Rule.OWN_SCALE, Rule.TABLE) for view in group):
                return group[-1].name
            if group[0].rule is not Rule.INPUT_SCALE or not group[0].producers:
                return ""
            source = group[0].producers[0]
        return ""


def _count(limit: int | float, total: int, source: str) -> int:
    if isinstance(limit, bool) or not isinstance(limit, (int, float)) or limit < 0:
        raise QconfigError(
            f"{source}: expected a number of entries or a share of them but got {limit!r}"
        )
    if isinstance(limit, int):
        return limit
    if limit > 1.0:
        raise QconfigError(f"{source}: a share of entries is at most 1.0, got {limit!r}")
    return math.ceil(limit * total - 1e-9)  # 0.2 of 15 entries is 3, not 4
