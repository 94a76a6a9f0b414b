"""The terminal's view of a run: one aligned table per model, worst first."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from _pytest.terminal import TerminalReporter

HEAD = ("", "check", "where", "got", "limit", "test")


def by_model(
    tests: Iterable[dict[str, Any]],
) -> dict[str, list[tuple[dict[str, Any], dict[str, Any]]]]:
    """(test, result) pairs per model, in the order of the names."""
    models: dict[str, list[tuple[dict[str, Any], dict[str, Any]]]] = {}
    for test in tests:
        for result in test["results"]:
            models.setdefault(result["model"], []).append((test, result))
    return dict(sorted(models.items()))


def write(terminal: TerminalReporter, data: dict[str, Any]) -> None:
    """Write the tables, or one line under ``-q``."""
    models = by_model(data["tests"])
    checks = [result for pairs in models.values() for _, result in pairs]
    failed = sum(not result["ok"] for result in checks)
    line = f"qtune: {len(checks)} checks on {len(models)} model(s), {failed} failed"
    if terminal.config.getoption("verbose") < 0:
        terminal.write_line(line)
        return
    terminal.section("qtune", "-")
    for model, pairs in models.items():
        terminal.write_line(f"{model}:")
        rows = [_row(test, result) for test, result in sorted(pairs, key=lambda p: p[1]["ok"])]
        for text in align([HEAD, *rows]):
            terminal.write_line("  " + text)
    for crash in data["crashed_workers"]:
        terminal.write_line(f"crashed worker {crash}", red=True)
    terminal.write_line(line)


def _row(test: dict[str, Any], result: dict[str, Any]) -> tuple[str, ...]:
    mark = "ok" if result["ok"] else "FAIL"
    name = str(test["nodeid"]).rsplit("::", 1)[-1]
    return mark, result["check"], result["where"], result["got"], result["limit"], name


def align(rows: list[tuple[str, ...]]) -> list[str]:
    """Left-aligned columns, two spaces apart."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
