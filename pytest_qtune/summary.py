"""A run in numbers: checks, models, failures; shared by terminal, JUnit, JSON and HTML."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

Pair = tuple[Mapping[str, Any], Mapping[str, Any]]


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
        return "ok"
    return "FAIL" if failed(test, result) else "caught"


def totals(tests: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Counts of checks by outcome, of models, and of tests that failed without a check."""
    listed = list(tests)
    marks = [mark(test, result) for test, result in pairs(listed)]
    return {
        "checks": len(marks),
        "models": len({result["model"] for _, result in pairs(listed)}),
        "failed": marks.count("FAIL"),
        "caught": marks.count("caught"),
        "errors": sum(not test["results"] for test in listed),
    }


def marches(tests: Iterable[Mapping[str, Any]]) -> str:
    """The marches that the models under test were made for, or that nobody but them knows."""
    found = {str(r["provenance"].get("march") or "") for _, r in pairs(tests)} - {""}
    return ", ".join(sorted(found)) or "set by the tests"


def line(counts: Mapping[str, int]) -> str:
    """``qtune: 3 checks on 1 model(s), 1 failed``."""
    text = (
        f"qtune: {counts['checks']} checks on {counts['models']} model(s), "
        f"{counts['failed']} failed"
    )
    if counts["caught"]:
        text += f", {counts['caught']} failed as their tests expect"
    if counts["errors"]:
        text += f", {counts['errors']} test(s) failed without a check"
    if counts.get("other_failures"):
        text += f", {counts['other_failures']} other test(s) failed"
    return text
