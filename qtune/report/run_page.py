"""The page about one pytest run, from the plugin's data (``--qtune-json`` has the same).

What matters most comes first and gets its room first: totals, gates, failed checks. A page stays
below ``PAGE_BYTES``; what it leaves out, it says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from markupsafe import Markup

from qtune.report.page import Section, Tile, render
from qtune.report.run_page_budget import PAGE_BYTES, Budget, Variant
from qtune.report.run_page_check import REST, variants
from qtune.report.run_page_model import MARKS, Model, checks_table, facts, models_of
from qtune.report.run_page_tables import (
    BAD_STATUSES,
    Listing,
    baselines,
    failures,
    gates,
    settings,
    summary,
)
from qtune.report.run_page_values import Entry, check_entry

_FRAME = 40_000
"""Bytes for the head, the style sheet and the notes."""
_LEAST_MODEL, _LEAST_CHECK = 4_000, 1_500
"""Bytes that a part gets at least, before the next one is asked."""
_TABLES, _MODELS = 0.1, 0.4
"""Share of the page for each table of the run, and for the tables of all models."""


def run_page(
    data: Mapping[str, Any],
    *,
    mark: Callable[[Entry, Entry], str],
    rank: Callable[[str, Entry], tuple[float, float]],
    size: int = PAGE_BYTES,
) -> str:
    """Render the run as a page of less than ``size`` bytes; the time is linear in the data.

    ``mark`` and ``rank`` are the plugin's rules: ``ok``, ``FAIL`` or ``caught`` for a (test,
    result), and the sort key of a (mark, result), worst first.
    """
    checks = [
        check_entry(test, result, mark(test, result))
        for test in data["tests"]
        for result in test["results"]
    ]
    models = models_of(sorted(checks, key=lambda check: rank(check["mark"], check)))
    budget = Budget(size - _FRAME)
    left_out: Counter[str] = Counter()
    tables = [
        budget.rows(part.section, len(part.table.rows), int(size * _TABLES)).text
        for part in _listings(data, models)
    ]
    parts = list(_model_parts(models, budget, left_out))
    return render(
        "qtune report",
        [*tables, *parts, settings(data)],
        subtitle=_subtitle(data),
        tiles=_tiles(data),
        note=_note(left_out, size),
    )


def _listings(data: Mapping[str, Any], models: Sequence[Model]) -> Iterator[Listing]:
    yield summary(models)
    if found := data.get("gates"):
        yield gates(found)
    yield from failures(data)
    if found := data.get("baselines"):
        yield baselines(found)


def _model_parts(
    models: Sequence[Model], budget: Budget, left_out: Counter[str]
) -> Iterator[Markup]:
    """The tables of all models, then the checks, failed ones of all models first."""
    frames: dict[str, list[Markup]] = {}
    reserved = int(budget.left * _MODELS)
    for index, model in enumerate(models):
        room = max(reserved // (len(models) - index), _LEAST_MODEL)
        before = budget.left
        head = budget.rows(partial(checks_table, model), len(model.checks), room).text
        if not head:
            left_out["models"] += len(models) - index
            break
        tail = [budget.fit([Variant(partial(_same, part))], room, 3).text for part in facts(model)]
        reserved = max(reserved - (before - budget.left), 0)
        frames[model.name] = [head, *tail]
    shown = [model for model in models if model.name in frames]
    details = _details(shown, budget, left_out)
    for model in shown:
        head, *tail = frames[model.name]
        yield from (head, *details.get(model.name, ()), *tail)


def _same(section: Section) -> Section:
    return section


def _details(
    models: Sequence[Model], budget: Budget, left_out: Counter[str]
) -> dict[str, list[Markup]]:
    """The part of each check, by model; failed ones get their room before any other."""
    found: dict[str, list[Markup]] = {}
    for mark in MARKS:
        wanted = [(m.name, c) for m in models for c in m.checks if c["mark"] == mark]
        for index, (model, check) in enumerate(wanted):
            if budget.left < _LEAST_CHECK:
                left_out["checks"] += len(wanted) - index
                break
            room = max(budget.left // (len(wanted) - index), _LEAST_CHECK)
            fitted = budget.fit(variants(check), room, 3)
            if fitted.text:
                found.setdefault(model, []).append(fitted.text)
            left_out["checks" if not fitted.text else "details"] += fitted.variant > 0
    return found


def _note(left_out: Mapping[str, int], size: int) -> str:
    """What the page leaves out."""
    words = {
        "details": "the large pictures or some rows of {} checks",
        "checks": "the parts of {} checks, which only stand in their model's table",
        "models": "{} models",
    }
    said = [words[key].format(count) for key, count in left_out.items() if count]
    if not said:
        return ""
    limit = f"To stay below {size / 1e6:g} MB, this page leaves out"
    return f"{limit}: {', '.join(said)}. Failures come first; {REST} (--qtune-json)."


def _bad(data: Mapping[str, Any]) -> tuple[int, int]:
    """Failed gates, and baseline entries that fail the run."""
    failed = sum(gate["outcome"] == "failed" for gate in data.get("gates", ()))
    return failed, sum(e["status"] in BAD_STATUSES for e in data.get("baselines", ()))


def _subtitle(data: Mapping[str, Any]) -> str:
    totals = data["totals"]
    if totals["failed"] or totals["errors"]:
        return "Some checks failed."
    if any(_bad(data)):
        return "No check failed, but gates or baselines did."
    if totals.get("other_failures") or data["crashed_workers"]:
        return "No check failed, but other tests of this run did."
    return "All checks passed." if totals["checks"] else "No check was made."


def _tiles(data: Mapping[str, Any]) -> list[Tile]:
    totals, (bad_gates, bad_entries) = data["totals"], _bad(data)
    failed = totals["failed"]
    tiles = [
        Tile(str(totals["models"]), "models"),
        Tile(str(totals["checks"]), "checks"),
        Tile(str(failed), "failed", "bad" if failed else "good"),
    ]
    if totals["caught"]:
        tiles.append(Tile(str(totals["caught"]), "failed, as their tests expect"))
    if data.get("gates"):
        label = f"of {len(data['gates'])} gates failed"
        tiles.append(Tile(str(bad_gates), label, "bad" if bad_gates else "good"))
    bad = {
        "baseline entries to look at": bad_entries,
        "tests failed without a check": totals["errors"],
        "other tests failed": totals.get("other_failures", 0),
        "workers crashed": len(data["crashed_workers"]),
    }
    return [*tiles, *(Tile(str(count), label, "bad") for label, count in bad.items() if count)]
