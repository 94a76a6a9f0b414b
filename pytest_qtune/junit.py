"""Measured numbers in JUnit XML: at their test case, at the suite, or nowhere (``qtune_junit``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from _pytest.junitxml import xml_key as XML

from pytest_qtune import options, summary

__all__ = ["XML", "add_to_suite", "properties"]


def properties(results: Sequence[Mapping[str, Any]]) -> list[tuple[str, object]]:
    """``qtune.<metric>`` pairs; a number keeps several assertions of one test apart."""
    pairs: list[tuple[str, object]] = []
    for index, result in enumerate(results):
        prefix = "qtune." if len(results) == 1 else f"qtune.{index}."
        pairs.append((prefix + "check", result["check"]))
        pairs += [(prefix + key, value) for key, value in result["metrics"].items()]
    return pairs


def add_to_suite(config: pytest.Config, data: Mapping[str, Any], *, everywhere: bool) -> None:
    """Run data on the suite (``everywhere``: with ``--qtune``); all numbers with ``suite``."""
    xml = config.stash[XML]
    mode = options.get(config, "junit")
    if xml is None or mode == "none":
        return
    if everywhere:
        for name, value in {**data["totals"], **data["settings"]}.items():
            xml.add_global_property(f"qtune.{name}", value)
    for _, result in summary.pairs(data["tests"] if mode == "suite" else ()):
        for key, value in result["metrics"].items():
            xml.add_global_property(f"qtune.{result['model']}.{result['check']}.{key}", value)
