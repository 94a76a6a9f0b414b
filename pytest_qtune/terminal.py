"""The terminal's view of a run: one aligned table per model, worst first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_qtune import summary

if TYPE_CHECKING:
    from _pytest.terminal import TerminalReporter

HEAD = ("", "check", "where", "got", "limit", "test")
_ORDER = {"FAIL": 0, "caught": 1, "ok": 2}


def write(terminal: TerminalReporter, data: dict[str, Any]) -> None:
    """Write the tables, or one line under ``-q``."""
    line = summary.line(data["totals"])
    if terminal.config.getoption("verbose") < 0:
        terminal.write_line(line)
        return
    terminal.section("qtune", "-")
    for model, rows in sorted(_tables(data["tests"]).items()):
        terminal.write_line(f"{model}:")
        rows.sort(key=lambda row: _ORDER[row[0]])
        for row, text in zip([HEAD, *rows], align([HEAD, *rows]), strict=True):
            terminal.write_line("  " + text, red=row[0] == "FAIL")
    for test in data["tests"]:
        if not test["results"]:
            terminal.write_line(
                f"failed without a check: {test['nodeid']}: {test['error']}", red=True
            )
    for crash in data["crashed_workers"]:
        terminal.write_line(f"crashed worker {crash}", red=True)
    cache = data["artefacts"]
    if cache:
        terminal.write_line(f"artefacts: {cache['built']} built, {cache['read']} read from cache")
    terminal.write_line(line)


def _tables(tests: list[dict[str, Any]]) -> dict[str, list[tuple[str, ...]]]:
    """Rows by model."""
    found: dict[str, list[tuple[str, ...]]] = {}
    for test, result in summary.pairs(tests):
        name = str(test["nodeid"]).rsplit("::", 1)[-1]
        cells = (result["check"], result["where"], result["got"], result["limit"], name)
        found.setdefault(result["model"], []).append((summary.mark(test, result), *cells))
    return found


def align(rows: list[tuple[str, ...]]) -> list[str]:
    """Left-aligned columns, two spaces apart."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
