"""One setting of one rule, and how rules name operators."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Protocol

from qtune.qconfig.dtypes import PortDType
from qtune.qconfig.plan import OpView


class Level(enum.IntEnum):
    """How directly a rule names an operator."""

    DEFAULT = 0
    """The reference qconfig."""
    GLOBAL = 1
    """Everything, or every operator of a kind."""
    PREFIX = 2
    """A module that contains the operator."""
    EXACT = 3
    """The operator's own name."""
    MODULE = 4
    """``module.qconfig``."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What one rule says about one port: ``output``, ``weight``, ``input-0``, ...

    ``dtype`` or ``threshold`` is ``None`` where the rule says nothing about it. A ``frozen``
    setting is kept against later templates.
    """

    name: str
    port: str
    rule: str
    level: Level
    dtype: PortDType | None = None
    threshold: float | None = None
    frozen: bool = False


class Template(Protocol):
    """Rules of one kind. A later template wins over an earlier one, unless that froze its own."""

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


def why_unmatched(key: str, views: Sequence[OpView]) -> str:
    """The reason to print for a rule for ``key`` that decided nothing."""
    if any(match(key, view) for view in views):
        return "no operator under this name has such a port, or a more specific rule decides it"
    known = sorted({view.name for view in views} | {view.scope for view in views} - {""})
    near = get_close_matches(key, known, n=3)
    return "no operator or module has this name" + (f"; close: {', '.join(near)}" if near else "")
