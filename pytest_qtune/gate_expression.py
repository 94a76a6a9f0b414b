"""The language of gates: ``[model-glob:] metric OP number [vs baseline]``."""

from __future__ import annotations

import fnmatch
import math
import operator
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import pytest

ABSOLUTE, BASELINE = "absolute", "baseline"
"""What a gate's number is: a bound of the value, or of its distance from the stored one."""

_COMPARE: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    ">": operator.gt,
    "<": operator.lt,
}
OPERATORS = tuple(_COMPARE)
EXPECTED = (
    f"[model-glob:] metric OP number [vs baseline], where OP is one of {', '.join(OPERATORS)}: "
    "min_sqnr_db>=25, net*: cpu_ops==0, top1>=-0.5 vs baseline"
)
_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_GATE = re.compile(
    r"(?:(?P<model>[^<>=]+):)?\s*(?P<metric>[A-Za-z_][\w.]*)\s*(?P<op>[<>=]=|[<>])\s*"
    rf"(?P<number>{_NUMBER})\s*(?P<versus>vs\s+baseline)?",
)
_SLIPS = {"=>": ">=", "=<": "<=", "!=": "", "≥": ">=", "≤": "<="}
"""What people write for an operator, and what they mean (nothing: there is no such gate)."""


@dataclass(frozen=True)
class Gate:
    """One limit on a number of each model.

    ``models``: glob of the models it is for, ``None`` without one. ``metric`` as written,
    ``limit`` such as ``>= 25``.
    ``relation``: whether the number bounds the value, or its difference from the baseline.
    """

    expression: str
    models: str | None
    metric: str
    op: str
    number: float
    limit: str
    relation: str = ABSOLUTE

    def is_for(self, model: str) -> bool:
        """Whether ``model`` is one of its models."""
        return self.models is None or fnmatch.fnmatchcase(model, self.models)

    def holds(self, value: float) -> bool:
        """Whether ``value`` (a difference, if ``vs baseline``) is allowed; NaN never is."""
        return _COMPARE[self.op](value, self.number)


def parse(text: str, source: str) -> Gate:
    """Read one gate; raise ``pytest.UsageError`` naming ``source`` and what is expected.

    >>> gate = parse("net*: min_sqnr_db >= 25", "ini key qtune_gates")
    >>> gate.models, gate.metric, gate.limit, gate.holds(25.0)
    ('net*', 'min_sqnr_db', '>= 25', True)
    """
    found = _GATE.fullmatch(text.strip())
    if found is None:
        raise pytest.UsageError(f"{source}: {text!r} is no gate{_hint(text)}; expected {EXPECTED}")
    number = float(found["number"])
    if not math.isfinite(number):
        raise pytest.UsageError(f"{source}: {text!r}: the number is too large for a float")
    versus = " vs baseline" if found["versus"] else ""
    return Gate(
        expression=" ".join(text.split()),
        models=found["model"].strip() if found["model"] else None,
        metric=found["metric"],
        op=found["op"],
        number=number,
        limit=f"{found['op']} {found['number']}{versus}",
        relation=BASELINE if versus else ABSOLUTE,
    )


def parse_all(texts: Iterable[str], source: str) -> tuple[Gate, ...]:
    """Read all gates of one source; the same gate twice is an error."""
    gates = tuple(parse(text, source) for text in texts)
    seen: set[tuple[object, ...]] = set()
    for gate in gates:
        key = (gate.models, gate.metric, gate.op, gate.relation)
        if key in seen:
            raise pytest.UsageError(
                f"{source}: {gate.expression!r}: {gate.metric} {gate.op} is there twice; keep one"
            )
        seen.add(key)
    return gates


def _hint(text: str) -> str:
    """What is probably wrong."""
    for slip, meant in _SLIPS.items():
        if slip in text:
            return f" (write {meant} for {slip})" if meant else f" (there is no {slip})"
    if re.search(r"(?<![<>=])=(?!=)", text):
        return " (write == for =)"
    if not any(op in text for op in OPERATORS):
        return " (it has no operator)"
    if re.search(r"\b(nan|inf|infinity)\b", text, re.IGNORECASE):
        return " (a finite number is needed: NaN fails every gate anyway)"
    if re.search(r"baseline", text):
        return " (what is compared with the baseline ends with: vs baseline)"
    return ""
