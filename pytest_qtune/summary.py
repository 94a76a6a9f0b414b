"""A run in numbers: checks, models, gates, failures; shared by terminal, JUnit, JSON and HTML."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

Pair = tuple[Mapping[str, Any], Mapping[str, Any]]

OK, FAIL, CAUGHT = "ok", "FAIL", "caught"
"""How a check ended: well; it failed and its test with it; it failed, which its test expected."""
_SURROUNDINGS = ("torch", "cpu_capability", "integer_kernels", "qat_mode")
_WITHOUT_MODEL = ("close", "fuzz")
"""Checks of values and of operators: what they name is no model."""
_ORDER = {FAIL: 0, CAUGHT: 1, OK: 2}


def pairs(tests: Iterable[Mapping[str, Any]]) -> Iterator[Pair]:
    """(test, result) for every check of the run."""
    for test in tests:
        for result in test["results"]:
            yield test, result


def failed(test: Mapping[str, Any], result: Mapping[str, Any]) -> bool:
    """Whether a check failed and its test with it."""
    return not result["ok"] and test["outcome"] == "failed"


def mark(test: Mapping[str, Any], result: Mapping[str, Any]) -> str:
    """``ok``, ``FAIL``, or ``caught``: it failed, which its test expected."""
    if result["ok"]:
        return OK
    return FAIL if failed(test, result) else CAUGHT


def rank(marked: str, result: Mapping[str, Any]) -> tuple[int, float]:
    """Sort key, worst first: failures, then by the distance from the limit.

    The distance is relative to the limit (absolute where that is 0): beyond it for a failure,
    what is left of it for a check that holds. What has no limit to compare with comes last.
    """
    limits, metrics = result["limits"], result["metrics"]
    bound, value = (found.get(next(iter(limits), "")) for found in (limits, metrics))
    if value == "NaN":  # as JSON holds it
        value = math.nan
    bound, value = _number(bound), _number(value)
    if bound is None or value is None:
        return _ORDER[marked], math.inf if marked == OK else 0.0
    if math.isnan(value):
        return _ORDER[marked], -math.inf
    distance = abs(value - bound) / (abs(bound) or 1.0)
    return _ORDER[marked], distance if marked == OK else -distance


def _number(value: Any) -> float | None:
    """A number, also as JSON's text for one that is not finite; ``None`` for all else."""
    known = isinstance(value, int | float) or value in ("NaN", "Infinity", "-Infinity")
    return float(value) if known else None


def totals(
    tests: Iterable[Mapping[str, Any]], gates: Iterable[Mapping[str, Any]] = ()
) -> dict[str, int]:
    """Counts of checks by outcome, of models, of tests that failed without a check, of gates."""
    listed, outcomes = list(tests), [gate["outcome"] for gate in gates]
    marks = [mark(test, result) for test, result in pairs(listed)]
    return {
        "checks": len(marks),
        "models": len({r["model"] for _, r in pairs(listed) if r["check"] not in _WITHOUT_MODEL}),
        "failed": marks.count(FAIL),
        "caught": marks.count(CAUGHT),
        "errors": sum(not test["results"] for test in listed),
        "gates": len(outcomes),
        "gates_failed": outcomes.count("failed"),
        "gates_skipped": outcomes.count("skipped"),
    }


def marches(tests: Iterable[Mapping[str, Any]]) -> str:
    """The marches that the models under test were made for, or that nobody but them knows."""
    return _of_provenance(tests, "march") or "set by the tests"


def surroundings(tests: Iterable[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """What the models under test were made with, of what they know: ``("qtune.torch", "2.13")``."""
    listed = list(tests)
    found = [(f"qtune.{name}", _of_provenance(listed, name)) for name in _SURROUNDINGS]
    return [(name, text) for name, text in found if text]


def _of_provenance(tests: Iterable[Mapping[str, Any]], name: str) -> str:
    found = {str(r["provenance"].get(name) or "") for _, r in pairs(tests)} - {""}
    return ", ".join(sorted(found))


def line(counts: Mapping[str, int]) -> str:
    """``qtune: 3 checks on 1 model(s), 1 failed``."""
    from qtune.report.words import counted

    text = (
        f"qtune: {counted(counts['checks'], 'check')} on {counts['models']} model(s), "
        f"{counts['failed']} failed"
    )
    if counts["caught"]:
        text += f", {counts['caught']} failed as their tests expect"
    if counts["errors"]:
        text += f", {counts['errors']} test(s) failed without a check"
    if counts.get("other_failures"):
        text += f", {counts['other_failures']} other test(s) failed"
    if counts["gates"]:
        text += f"; {counts['gates']} gate(s), {counts['gates_failed']} failed"
    if counts["gates_skipped"]:
        text += f", {counts['gates_skipped']} skipped"
    return text
