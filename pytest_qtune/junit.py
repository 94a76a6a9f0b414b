"""Measured numbers in JUnit XML: at their test case, at the suite, or nowhere (``qtune_junit``)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest
from _pytest.junitxml import xml_key as XML

from pytest_qtune import options

__all__ = ["XML", "add_to_suite", "attach", "forget", "gate_properties", "on_testcase"]

Pairs = list[tuple[str, object]]
ATTACHED = pytest.StashKey[list[Any]]()
"""The results of an item so far."""
_START = "qtune."


def is_ours(pair: tuple[str, object]) -> bool:
    """Whether a user property is one of qtune: the names that start with ``qtune.`` are."""
    return str(pair[0]).startswith(_START)


def on_testcase(config: pytest.Config) -> bool:
    """Whether numbers are properties of their test case."""
    return bool(options.get(config, "junit") == "testcase")


def attach(item: pytest.Item, report: pytest.TestReport, results: Sequence[Any]) -> None:
    """Set the properties of an item, and of this phase's report, to those of all its results.

    The report of the last phase is the one that JUnit takes.
    """
    if not on_testcase(item.config):
        return
    seen = [*item.stash.get(ATTACHED, ()), *results]
    forget(item)
    item.stash[ATTACHED] = seen
    item.user_properties += properties(seen)
    report.user_properties = list(item.user_properties)


def forget(item: pytest.Item) -> None:
    """Take the properties off again; a test that is run once more starts with none."""
    item.stash[ATTACHED] = []
    item.user_properties[:] = [pair for pair in item.user_properties if not is_ours(pair)]


def properties(results: Sequence[Mapping[str, Any]]) -> Pairs:
    """``qtune.<metric>`` pairs; a number keeps several assertions of one test apart."""
    pairs: Pairs = []
    for index, result in enumerate(results):
        prefix = _START if len(results) == 1 else f"{_START}{index}."
        pairs.append((prefix + "check", result["check"]))
        pairs += [(prefix + key, value) for key, value in result["metrics"].items()]
    return _clean(pairs)


def gate_properties(gate: Mapping[str, Any]) -> Pairs:
    """What a gate compared; numbers that it has not are left out."""
    names = ("expression", "value", "limit", "baseline")
    return _clean([(f"qtune.gate.{n}", gate[n]) for n in names if gate[n] is not None])


def add_to_suite(config: pytest.Config, data: Mapping[str, Any], *, everywhere: bool) -> None:
    """Run data on the suite (``everywhere``: with ``--qtune``); all numbers with ``suite``."""
    from pytest_qtune import summary

    xml = config.stash[XML]
    mode = options.get(config, "junit")
    if xml is None or mode == "none":
        return
    pairs: Pairs = []
    if everywhere:
        facts = {**data["totals"], **data["settings"]}
        pairs += [(f"qtune.{name}", value) for name, value in facts.items()]
        pairs += [("qtune.version", data["qtune"]), *summary.surroundings(data["tests"])]
    for _, result in summary.pairs(data["tests"] if mode == "suite" else ()):
        start = f"qtune.{result['model']}.{result['check']}"
        pairs += [(f"{start}.{key}", value) for key, value in result["metrics"].items()]
    for gate in data["gates"] if mode == "suite" else ():
        pairs.append((f"qtune.gate.{gate['model']}.{gate['metric']}", gate["value"]))
    for name, value in _clean(pairs):
        xml.add_global_property(name, value)


def _clean(pairs: Iterable[tuple[str, object]]) -> Pairs:
    """Names that XML can hold (pytest escapes values only), each once: ``name``, ``name#2``."""
    counts: dict[str, int] = {}
    cleaned: Pairs = []
    for name, value in pairs:
        safe = "".join(c if c.isprintable() else f"#x{ord(c):02X}" for c in name)
        counts[safe] = counts.get(safe, 0) + 1
        unique = safe if counts[safe] == 1 else f"{safe}#{counts[safe]}"
        cleaned.append((unique, "n/a" if value is None else value))
    return cleaned
