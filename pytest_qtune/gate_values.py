"""Gates against the numbers of a run: which value counts for a model, and what follows from it."""

from __future__ import annotations

import difflib
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pytest_qtune import summary
from pytest_qtune.gate_expression import BASELINE, Gate

PREFIX = "qtune-gate"
"""First part of the node id of every gate."""
PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"
_MOST_NAMES = 8

Entry = dict[str, Any]


@dataclass(frozen=True)
class Measured:
    """One number that a check measured, where, and on what (the model's provenance)."""

    value: float
    test: str
    check: str
    where: str
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        place = f"{self.check} of {self.test}"
        return f"{place}, at {self.where}" if self.where else place


Numbers = Mapping[str, Mapping[str, Sequence[Measured]]]
"""Model -> metric -> every value of it."""


def numbers(tests: Iterable[Mapping[str, Any]]) -> Numbers:
    """All numbers that count.

    Also those of a test that failed. Not those of an xfailed test, nor of a check that failed in a
    test that expects it (``caught``): nobody claims that such a model is good. ``None`` means that
    there was nothing to measure.
    """
    found: dict[str, dict[str, list[Measured]]] = {}
    for test, result in summary.pairs(tests):
        if test["outcome"] == "xfailed" or summary.mark(test, result) == summary.CAUGHT:
            continue
        metrics = found.setdefault(str(result["model"]), {})
        for name, value in result["metrics"].items():
            if value is not None:
                place = (test["nodeid"], result["check"], result["where"], result["provenance"])
                metrics.setdefault(name, []).append(Measured(float(value), *place))
    return found


def select(gate: Gate, metrics: Mapping[str, Sequence[Measured]]) -> Measured | None:
    """The value that a gate looks at, ``None`` if nobody measured it.

    ``min_x``/``max_x``: the smallest/largest ``x``, unless a check calls a metric just so. Without
    prefix: the worst one for the gate's operator. NaN is worse than everything.
    """
    side, _, rest = gate.metric.partition("_")
    if gate.metric in metrics or side not in ("min", "max"):
        side, rest = _worst_side(gate), gate.metric
    values = metrics.get(rest, ())
    if not values:
        return None
    undefined = [item for item in values if math.isnan(item.value)]
    if undefined:
        return undefined[0]
    sign = -1.0 if side == "min" else 1.0
    if side == "far":
        return max(values, key=lambda item: abs(item.value - gate.number))
    return max(values, key=lambda item: sign * item.value)


def stored_name(gate: Gate) -> str:
    """The name of a gate's value in the baseline file: with the side that was taken."""
    if gate.metric.startswith(("min_", "max_")):
        return gate.metric
    return f"{_worst_side(gate)}_{gate.metric}"


def _worst_side(gate: Gate) -> str:
    if gate.op == "==":
        return "far" if gate.relation != BASELINE else "max"
    return "min" if gate.op in (">=", ">") else "max"


def models_of(gate: Gate, found: Numbers) -> list[str]:
    """The models of a run that a gate is for.

    With a glob every model that it fits: each must have the number. Without one those that have
    it: a run also knows models of which only the structure was checked.
    """
    if gate.models is None:
        return sorted(model for model in found if select(gate, found[model]) is not None)
    return sorted(model for model in found if gate.is_for(model))


def judge(
    gate: Gate,
    model: str,
    measured: Measured,
    baseline: float | None = None,
    *,
    written: bool = False,
) -> Entry:
    """The outcome for one model with a value. ``written``: it just became the baseline."""
    got, compared = f"got {_text(measured.value)}", measured.value
    if baseline is not None:
        compared -= baseline
        got += f", baseline {_text(baseline)}, difference {_text(compared)}"
    holds = written or gate.holds(compared)
    advice = "" if holds else "; look at this check's worst layers, or change the gate on purpose"
    return _with_value(gate, model, measured) | {
        "baseline": baseline,
        "outcome": PASSED if holds else FAILED,
        "message": f"{model}: {gate.metric}: {got}, limit {gate.limit} ({measured}){advice}",
    }


def failed(gate: Gate, model: str, measured: Measured, why: str) -> Entry:
    """A value that can't be compared."""
    text = f"{model}: {gate.metric}: got {_text(measured.value)}, limit {gate.limit}, {why}"
    return _with_value(gate, model, measured) | {"message": text}


def _with_value(gate: Gate, model: str, measured: Measured) -> Entry:
    return entry_of(gate, model) | {"value": measured.value, "test": measured.test}


def missing(
    gate: Gate, model: str | None, found: Numbers, partial: str, *, crashed: bool = False
) -> Entry:
    """The outcome where nobody measured it: a failure, unless only a part of the tests ran.

    ``crashed``: whether a worker did, which then is the first thing to look at.
    """
    why, advice = _reason(gate, model, found)
    if crashed:
        advice = "look at the worker that crashed first"
    entry = entry_of(gate, model or gate.models or "*")
    text = f"{entry['model']}: {gate.metric}: {why}"
    if partial:
        return entry | {"outcome": SKIPPED, "message": f"{text} ({partial})"}
    return entry | {"message": f"{text}; {advice}"}


def _reason(gate: Gate, model: str | None, found: Numbers) -> tuple[str, str]:
    """Why a number is missing, and what to do."""
    if not found:
        return (
            "no check of this run measured a model",
            "write a test with an assertion of qtune.testing, or take the gate out",
        )
    if model is None and gate.models is not None:
        return (
            f"no model is named like {gate.models!r}, there are: {_listed(found)}",
            "correct the glob, or take the gate out",
        )
    names = found[model] if model else {name for metrics in found.values() for name in metrics}
    near = difflib.get_close_matches(gate.metric, _spellings(names), n=1)
    advice = "write a test with an assertion that measures it, or take the gate out"
    return (
        f"no check measured it; measured: {_listed(names)}",
        f"did you mean {near[0]}?" if near else advice,
    )


def entry_of(gate: Gate, model: str) -> Entry:
    """The fields of the report that no value decides."""
    return {
        "nodeid": f"{PREFIX}::{_safe(model)}[{gate.metric}]",
        "model": model,
        "metric": gate.metric,
        "expression": gate.expression,
        "relation": gate.relation,
        "outcome": FAILED,
        "value": None,
        "limit": gate.limit,
        "baseline": None,
        "test": "",
        "message": "",
    }


def complete(entries: Sequence[Entry]) -> list[Entry]:
    """Entries by node id, each with an id of its own and a message that is one line.

    Several gates on one metric of a model are told apart by their limits, then by a number.
    """
    from qtune.testing.result import printable

    counts = Counter(entry["nodeid"] for entry in entries)
    seen: Counter[str] = Counter()
    done = []
    for entry in entries:
        nodeid = str(entry["nodeid"])
        if counts[nodeid] > 1:
            nodeid = f"{nodeid[:-1]} {entry['limit']}]"
        seen[nodeid] += 1
        if seen[nodeid] > 1:
            nodeid = f"{nodeid[:-1]} #{seen[nodeid]}]"
        done.append(entry | {"nodeid": nodeid, "message": printable(entry["message"])})
    return sorted(done, key=lambda entry: str(entry["nodeid"]))


def _spellings(names: Iterable[str]) -> list[str]:
    """Every name under which a gate could ask for one of these metrics."""
    return [side + name for name in names for side in ("", "min_", "max_")]


def _listed(names: Iterable[str]) -> str:
    ordered = sorted(names)
    more = len(ordered) - _MOST_NAMES
    return ", ".join(ordered[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "") or "nothing"


def _safe(model: str) -> str:
    """A name that does not break a node id: one line, no ``::``."""
    from qtune.testing.result import printable

    return printable(model).replace("::", ":")


def _text(value: float) -> str:
    return f"{value:.6g}"
