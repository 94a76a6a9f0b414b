"""The terminal's view of a run: one aligned table per model, worst first, and one of the gates."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pytest_qtune import summary
from pytest_qtune.text_columns import align

if TYPE_CHECKING:
    from _pytest.terminal import TerminalReporter

HEAD = ("", "check", "where", "got", "limit", "baseline", "test")
GATE_HEAD = ("", "model", "metric", "got", "limit", "baseline", "test")
CUT = ("where", "test", "model", "check", "metric")
"""Columns that may be cut where a terminal is narrow: names, never numbers."""
_GATE_MARKS = {"failed": (0, "FAIL"), "skipped": (1, "skipped"), "passed": (2, "ok")}
_QUIET_STATUS = ("equal", "within")
"""Baselines that need no line of their own."""

Row = tuple[str, ...]


def write(terminal: TerminalReporter, data: Mapping[str, Any]) -> None:
    """Write the tables, or one line under ``-q``."""
    line = summary.line(data["totals"])
    totals = data["totals"]
    bad = bool(totals["failed"] or totals["errors"] or totals["gates_failed"])
    if terminal.config.getoption("verbose") < 0:
        terminal.write_line(line, red=bad)
        return
    terminal.section("qtune", "-")
    room = _room(terminal)
    for model, rows in sorted(_tables(data["tests"]).items()):
        _table(terminal, model, [HEAD, *rows], room)
    if data["gates"]:
        _table(terminal, "gates", [GATE_HEAD, *_gates(data["gates"])], room)
    for text in _failures(data):
        terminal.write_line(text, red=True)
    for text in _baselines(data["baselines"]):
        terminal.write_line(text)
    cache = data["artefacts"]
    if cache:
        terminal.write_line(f"artefacts: {cache['built']} built, {cache['read']} read from cache")
    terminal.write_line(line, red=bad)


def _room(terminal: TerminalReporter) -> int | None:
    """Columns for a line; ``None``: as many as it takes, in a file or a log."""
    is_screen = bool(terminal.isatty) or "COLUMNS" in os.environ
    return terminal.config.get_terminal_writer().fullwidth if is_screen else None


def _table(terminal: TerminalReporter, title: str, rows: Sequence[Row], room: int | None) -> None:
    terminal.write_line(f"{_flat(title)}:")
    baseline = rows[0].index("baseline")
    if not any(row[baseline] for row in rows[1:]):
        rows = [row[:baseline] + row[baseline + 1 :] for row in rows]
    flat = [tuple(map(_flat, row)) for row in rows]
    texts = align(flat, CUT, None if room is None else room - 2)
    for row, text in zip(flat, texts, strict=True):
        terminal.write_line("  " + text, red=row[0] == summary.FAIL)


def _flat(text: str) -> str:
    from qtune.testing.result import printable

    return printable(text)


def _tables(tests: Sequence[Mapping[str, Any]]) -> dict[str, list[Row]]:
    """Rows by model, worst first."""
    found: dict[str, list[tuple[tuple[int, float], Row]]] = {}
    for test, result in summary.pairs(tests):
        marked = summary.mark(test, result)
        name = str(test["nodeid"]).rsplit("::", 1)[-1]
        cells = (result[key] for key in ("check", "where", "got", "limit", "baseline"))
        row = (marked, *cells, name)
        found.setdefault(result["model"], []).append((summary.rank(marked, result), row))
    return {
        model: [row for _, row in sorted(rows, key=lambda ranked: ranked[0])]
        for model, rows in found.items()
    }


def _gates(gates: Sequence[Mapping[str, Any]]) -> Iterator[Row]:
    for gate in sorted(gates, key=lambda gate: _GATE_MARKS[gate["outcome"]]):
        got = ("missing" if gate["outcome"] == "failed" else "") if gate["value"] is None else ""
        yield (
            _GATE_MARKS[gate["outcome"]][1],
            gate["model"],
            gate["metric"],
            got or _number(gate["value"]),
            gate["limit"],
            _number(gate["baseline"]),
            gate["test"].rsplit("::", 1)[-1],
        )


def _failures(data: Mapping[str, Any]) -> Iterator[str]:
    """What failed and is in no table."""
    for test in data["tests"]:
        if not test["results"]:
            yield f"failed without a check: {test['nodeid']}: {test['error']}"
    for crash in data["crashed_workers"]:
        yield f"crashed worker {crash}"


def _baselines(entries: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """How many are as they were, and the names of all others."""
    if not entries:
        return
    counts: dict[str, int] = {}
    for entry in entries:
        counts[entry["status"]] = counts.get(entry["status"], 0) + 1
    yield "baselines: " + ", ".join(f"{n} {status}" for status, n in sorted(counts.items()))
    for entry in entries:
        if entry["status"] not in _QUIET_STATUS:
            note = f": {entry['note']}" if entry["note"] else ""
            yield _flat(
                f"  {entry['status']} {entry['key']}::{entry['name']} in {entry['file']}{note}"
            )


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"
