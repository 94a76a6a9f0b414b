"""The tables of a run's page: summary, gates, baselines, failures without a check, settings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from qtune.report.page import Section, Table
from qtune.report.run_page_check import REST
from qtune.report.run_page_model import Model
from qtune.report.run_page_values import Entry, clipped, name, number, short_test

BAD_STATUSES = ("changed", "missing", "lost", "stale")
"""Of a baseline's entry: what fails its test or the run; the others are notes or fine."""
_STATUSES = (*BAD_STATUSES, "unused", "created", "updated", "kept", "within", "equal")
_OUTCOMES = ("failed", "skipped", "passed")
_FOLDED = 10
"""Longer tables are folded where nothing in them failed."""


@dataclass(frozen=True, slots=True)
class Listing:
    """A headed table whose first column is a status, worst first, to be shown in part."""

    title: str
    table: Table
    text: str = ""
    open: bool = True

    def section(self, rows: int) -> Section:
        """With so many rows; folded if it is long and all is well."""
        shown, text = replace(self.table, most=rows), [self.text] if self.text else []
        if not self.table.rows:
            return Section(self.title, text)
        if self.open or len(self.table.rows) <= _FOLDED:
            return Section(self.title, text, [shown])
        inner = Section(f"All {len(self.table.rows)}", tables=[shown], collapsed=True)
        return Section(self.title, text, sections=[inner])


def summary(models: Sequence[Model]) -> Listing:
    """One row per model, with its first failure."""
    columns = ("result", "model", "failed", "checks", "first failure")
    rows = [
        {
            "result": model.mark,
            "model": name(model.name),
            "checks": len(model.checks),
            "failed": model.failed,
            "first failure": "" if model.mark == "ok" else clipped(model.checks[0]["headline"]),
        }
        for model in models
    ]
    if not rows:
        return Listing("Summary", Table(columns, []), "No test of this run made a qtune assertion.")
    table = Table(
        columns,
        rows,
        bad="failed",
        numeric=("checks", "failed"),
        link="model",
        wrap=("model", "first failure"),
        status="result",
        rest=REST,
        targets={name(model.name): model.anchor for model in models},
    )
    return Listing("Summary", table)


def gates(found: Sequence[Entry]) -> Listing:
    """Every gate: what was found, the limit, the baseline; failed ones first, with what to do."""
    entries = sorted(found, key=lambda gate: _rank(_OUTCOMES, gate["outcome"]))
    columns = ("result", "gate", "value", "limit", "baseline", "model", "note")
    rows = [
        {
            "result": gate["outcome"],
            "gate": name(gate["expression"]),
            "model": name(gate["model"]),
            "value": number(gate["value"]),
            "limit": name(gate["limit"]),
            "baseline": number(gate["baseline"]),
            "note": _note(gate),
            "bad": gate["outcome"] == "failed",
        }
        for gate in entries
    ]
    numeric, wrap = ("value", "baseline"), ("gate", "limit", "model", "note")
    table = Table(columns, rows, bad="bad", numeric=numeric, wrap=wrap, status="result", rest=REST)
    text, bad = _counts(rows)
    return Listing("Gates", table, text, open=bad)


def _note(gate: Entry) -> str:
    """What to do, or where a passed gate's value is from."""
    if gate["outcome"] != "passed":
        return clipped(gate["message"] or "", 600)
    return short_test(gate["test"]) if gate["test"] else ""


def baselines(found: Sequence[Entry]) -> Listing:
    """Every entry of the baseline files that this run met; what fails comes first."""
    entries = sorted(found, key=lambda entry: _rank(_STATUSES, entry["status"]))
    columns = ("result", "name", "value", "baseline", "limit", "entry", "note", "file")
    rows = [
        {
            "result": entry["status"],
            **{key: number(entry[key]) for key in ("name", "value", "baseline", "limit", "file")},
            "entry": number(entry["key"]),
            "note": clipped(entry["note"] or "", 600),
            "bad": entry["status"] in BAD_STATUSES,
        }
        for entry in entries
    ]
    table = Table(columns, rows, bad="bad", wrap=columns[1:], status="result", rest=REST)
    text, bad = _counts(rows)
    return Listing("Baselines", table, text, open=bad)


def _rank(order: Sequence[str], status: str) -> int:
    """Where a status stands; one that this page does not know comes last."""
    return order.index(status) if status in order else len(order)


def _counts(rows: Sequence[Mapping[str, Any]]) -> tuple[str, bool]:
    """``2 failed, 3 passed.``, and whether any is bad."""
    counts = Counter(row["result"] for row in rows)
    said = ", ".join(f"{count} {status}" for status, count in counts.items())
    return f"{said}.", any(row["bad"] for row in rows)


def failures(data: Mapping[str, Any]) -> Iterator[Listing]:
    """Failures that are no failed check: tests, files that can't be collected, workers."""
    early = [test for test in data["tests"] if not test["results"]]
    yield from _failures("Tests that failed before they made a check", "test", _named(early))
    others = _named(data.get("other_failures", ()))
    yield from _failures("Other tests that failed", "test", others)
    crashed = [text.partition(": ")[::2] for text in data["crashed_workers"]]
    yield from _failures("Crashed workers", "worker", crashed)


def _named(tests: Iterable[Entry]) -> list[tuple[str, str]]:
    return [(test["nodeid"], test["error"]) for test in tests]


def _failures(title: str, kind: str, pairs: Sequence[tuple[str, str]]) -> Iterator[Listing]:
    """A table of (name, error) pairs, if there are any."""
    rows = [{"result": "FAIL", kind: name(key), "error": clipped(said)} for key, said in pairs]
    columns = ("result", kind, "error")
    if rows:
        table = Table(columns, rows, wrap=(kind, "error"), status="result", rest=REST)
        yield Listing(title, table)


def settings(data: Mapping[str, Any]) -> Section:
    """What the run was made with."""
    artefacts = {f"artefacts {key}": n for key, n in sorted(data["artefacts"].items())}
    run: Mapping[str, Any] = data.get("run", {})
    times = {key: run[key] for key in ("started", "seconds") if key in run}
    ids = ", ".join(str(process["id"]) for process in run.get("processes", ()))
    known = {"qtune": data.get("qtune"), **times, "processes": ids}
    facts = {**{k: v for k, v in known.items() if v}, **data["settings"], **artefacts}
    rows = [{"setting": name(k), "value": "" if v is None else name(v)} for k, v in facts.items()]
    return Section("Settings", tables=[Table(("setting", "value"), rows, wrap=("value",))])
