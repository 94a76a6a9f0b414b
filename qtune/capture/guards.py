"""Guards: nodes that refuse inputs for which the model would have taken another path.

A guard is a ``call_function`` node of one of the ``check_...`` functions here. It raises
``GuardError`` with the condition, the source line and what came; its result is not used.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import fx

from qtune.errors import GuardError

SIGNS: dict[Callable[..., Any], str] = {
    operator.eq: "==",
    operator.ne: "!=",
    operator.lt: "<",
    operator.le: "<=",
    operator.gt: ">",
    operator.ge: ">=",
}
THIS_CALL = "qtune.Inputs(<this call>)"
"""Stands in messages for the call that failed, which only the model knows."""

_COMPARE = {sign: function for function, sign in SIGNS.items()}
_OPPOSITE = {"==": "!=", "!=": "==", "<": ">=", ">=": "<", "<=": ">", ">": "<="}


@dataclass(frozen=True, slots=True)
class GuardInfo:
    """One guard of a recorded graph: its condition and the line of the model it comes from."""

    text: str
    source: str
    scope: str


@dataclass(frozen=True, slots=True)
class ConstantInfo:
    """A tensor that nothing tracked, kept as buffer ``name``: its value is frozen."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    source: str


@dataclass(frozen=True, slots=True)
class CaptureReport:
    """What recording found besides operators. ``notes``: state that a replay doesn't update."""

    constants: tuple[ConstantInfo, ...] = ()
    guards: tuple[GuardInfo, ...] = ()
    notes: tuple[str, ...] = ()


def condition(sign: str, left: str, right: str, holds: bool) -> str:
    """The comparison as it held when it was recorded."""
    return f"{left} {sign if holds else _OPPOSITE[sign]} {right}"


def check_comparison(sign: str, left: Any, right: Any, holds: bool, text: str, source: str) -> None:
    """Raise ``GuardError`` unless ``left <sign> right`` is ``holds`` again."""
    if _COMPARE[sign](left, right) != holds:
        raise _refusal("size guard", text, source, f"{left} and {right}")


def check_value(value: Any, expected: Any, text: str, source: str) -> None:
    """Raise ``GuardError`` unless ``value`` is what it was when the model was recorded."""
    if not same(value, expected):
        raise _refusal("guard", text, source, _short(value))


def check_training(value: Any, expected: bool, text: str, source: str) -> None:
    """Raise ``GuardError`` unless a module is in the mode that the model was recorded in."""
    if bool(value) is not expected:
        now, recorded = ("training", "eval") if value else ("eval", "training")
        raise GuardError(
            f"guard `{text}` from {source} does not hold: the model is in {now} mode, and forward "
            f"reads this flag and was recorded in {recorded} mode only. Record both: "
            f"example_inputs=[{THIS_CALL}.in_mode(training=t) for t in (False, True)]"
        )


def check_length(items: Sequence[Any], expected: int, text: str, source: str) -> None:
    """Raise ``GuardError`` unless the sequence has as many items as when it was recorded."""
    if len(items) != expected:
        raise _refusal("guard", text, source, str(len(items)))


def is_guard(node: fx.Node) -> bool:
    """Whether the node only checks a condition."""
    return node.op == "call_function" and node.target in (
        check_comparison,
        check_value,
        check_training,
        check_length,
    )


def needs_mode(node: fx.Node) -> bool | None:
    """The value that a guard wants a training flag to have; ``None`` for all other nodes."""
    is_check = node.op == "call_function" and node.target is check_training
    return bool(node.args[1]) if is_check else None


def guards_of(graph: fx.Graph) -> tuple[GuardInfo, ...]:
    """The guards in a graph, in order of execution."""
    return tuple(
        GuardInfo(str(node.args[-2]), str(node.args[-1]), str(node.meta.get("scope", "")))
        for node in graph.nodes
        if is_guard(node)
    )


def same(value: Any, expected: Any) -> bool:
    """Equality of plain values; NaN equals NaN, ``True`` is not ``1``."""
    if isinstance(expected, float) and isinstance(value, float):
        return value == expected or (math.isnan(value) and math.isnan(expected))
    if isinstance(expected, list | tuple) and isinstance(value, list | tuple):
        return len(value) == len(expected) and all(map(same, value, expected))
    return type(value) is type(expected) and bool(value == expected)


def _refusal(kind: str, text: str, source: str, came: str) -> GuardError:
    return GuardError(
        f"{kind} `{text}` from {source} does not hold (got {came}): the model takes another path "
        "for these inputs than for the example. Keep to inputs that fulfil it, record an example "
        "of the other path too (example_inputs=[first, qtune.Inputs(...)]), or remove the "
        "condition from forward"
    )


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
