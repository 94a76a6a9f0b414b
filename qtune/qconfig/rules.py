"""One setting of one rule, and how rules name operators."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Protocol

from qtune.qconfig.dtypes import PortDType
from qtune.qconfig.plan import OpView

if TYPE_CHECKING:
    from qtune.qconfig.qconfig import QConfig

PORTS = ("output", "weight", "input")
"""The kinds of ports that rules name."""


class Level(enum.IntEnum):
    """How directly a rule names an operator."""

    DEFAULT = 0
    """The reference qconfig."""
    GLOBAL = 1
    """Everything, or every operator of a kind; high-precision outputs come on top."""
    WHOLE = 2
    """A qconfig of the whole model or of a type, which speaks for its outputs as well."""
    PREFIX = 3
    """A module that contains the operator."""
    EXACT = 4
    """The operator's own name."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What one rule says about one port: ``output``, ``weight``, ``input-0``, ...

    ``dtype`` or ``threshold`` is ``None`` where the rule says nothing about it. A ``qconfig``
    decides the whole port: dtype, observer, and that it has no threshold. A ``frozen`` setting is
    kept against later templates.
    """

    name: str
    port: str
    rule: str
    level: Level
    dtype: PortDType | None = None
    threshold: float | None = None
    qconfig: QConfig | None = None
    frozen: bool = False


class Template(Protocol):
    """Rules of one kind. A later template wins over an earlier one, unless that froze its own.

    A template that must know all operators before it answers also has ``bind(views)``, which
    returns the template to ask.
    """

    def settings(self, group: Sequence[OpView]) -> Iterable[Setting]:
        """What it says about the members of one fused group (or one operator)."""

    def unmatched(self, views: Sequence[OpView], used: frozenset[str]) -> list[str]:
        """Rules that decided nothing: ``used`` holds the ``rule`` of every setting it gave."""


def match(key: str, view: OpView) -> tuple[Level, int] | None:
    """How well a name or prefix fits an operator: the level and the number of its components.

    A prefix ends at a dot; ``None`` where it does not fit.
    """
    if key == "":
        return Level.GLOBAL, 0
    length = key.count(".") + 1
    if view.name == key:
        return Level.EXACT, length
    inside = view.name.startswith(key + ".") or f"{view.scope}.".startswith(key + ".")
    return (Level.PREFIX, length) if inside else None


def input_ports(view: OpView) -> list[int]:
    """The operands that can have a fake-quantize: another operator's result, or a constant."""
    if view.dequantizes or view.takes_float:
        return []
    return [
        i
        for i in range(max(len(view.producers), *(c + 1 for c in view.constants), 0))
        if i in view.constants or (i < len(view.producers) and view.producers[i] is not None)
    ]


NO_RULE = "the setter, which has no rule for it"
"""``Rules.reference_rule`` of setters that speak for some operators only."""


@dataclass(frozen=True)
class Rules:
    """What ``resolve`` applies, whatever kind of setter it came from.

    ``reference_qconfig``: the qconfig of what no template names, ``reference_rule`` how it is
    called. ``advise_outputs``: say which outputs of the model can't be high precision, and why.
    ``strict``: a rule that decides nothing and a dtype that is not given are errors. ``unheard``:
    setters that can't decide anything, with the reason.
    """

    reference_qconfig: QConfig
    templates: tuple[Template, ...] = ()
    reference_rule: str = "reference qconfig"
    advise_outputs: bool = False
    strict: bool = False
    unheard: tuple[str, ...] = ()

    @property
    def is_partial(self) -> bool:
        """Whether it speaks for some operators only; the others stay float."""
        return self.reference_rule == NO_RULE


def bound(templates: Sequence[Template], views: Sequence[OpView]) -> tuple[Template, ...]:
    """The templates, each after a look at all operators if it wants one."""
    return tuple(t.bind(views) if hasattr(t, "bind") else t for t in templates)


def port_names(view: OpView) -> list[str]:
    """The ports of an operator before its result: ``weight``, ``input-0``, ..."""
    weight = ["weight"] if view.weight else []
    return weight + [f"input-{index}" for index in input_ports(view)]


def why_unmatched(key: str, views: Sequence[OpView]) -> str:
    """The reason to print for a rule for ``key`` that decided nothing."""
    if any(match(key, view) for view in views):
        return "no operator under this name has such a port, or a more specific rule decides it"
    if key in PORTS or key.startswith("input-"):
        return f"{key!r} is a port; write {{<operator>: {{{key!r}: ...}}}}"
    known = sorted({view.name for view in views} | {view.scope for view in views} - {""})
    near = get_close_matches(key, known, n=3)
    return "no operator or module has this name" + (f"; close: {', '.join(near)}" if near else "")
