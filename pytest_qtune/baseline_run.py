"""The baselines of a whole run, on the controller: what is written, and which are unused."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_qtune import baselines, options

if TYPE_CHECKING:
    from _pytest.terminal import TerminalReporter

    from pytest_qtune.session import QtuneSession
    from qtune.testing.baseline_file import Entries, Entry

Row = dict[str, Any]
_WRITTEN = ("created", "updated")
_NOTHING: Any = object()
"""No change, where ``None`` removes."""
_GONE, _SKIPPED = "there is no such test", "its test was skipped"
_REMOVED = f"{_GONE}; removed"
_FAILED = "not written: its test did not pass"
_INTERRUPTED = "not written: the run was interrupted"
_NO_PLACE = "not written: the file can't be written"
_NOT_WRITTEN = (_FAILED, _INTERRUPTED, _NO_PLACE)


@dataclass(slots=True)
class _Test:
    """One attempt of a test."""

    attempt: int = 1
    rows: dict[str, Row] = field(default_factory=dict)
    passed: bool = True
    skipped: bool = False
    ended: bool = False


class BaselineRun:
    """A plugin object of the controller (or of a run without workers)."""

    def __init__(
        self, config: pytest.Config, session: QtuneSession, local: baselines.QtuneBaselines
    ) -> None:
        self.config = config
        self.session = session
        self.collected: baselines.Collected = local.collected
        self.update: str | None = options.get(config, "update")
        self.tests: dict[str, _Test] = {}
        self.rows: list[Row] = []
        self.written: list[str] = []
        self.error = ""
        self.interrupted = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Collect what a test left on its report, and whether it passed."""
        if not isinstance(report, pytest.TestReport):
            return
        nodeid = getattr(report, "qtune_id", report.nodeid)
        attempt = getattr(report, "qtune_attempt", 1)
        test = self.tests.get(nodeid)
        if test is None or attempt > test.attempt:  # the last attempt counts
            test = self.tests[nodeid] = _Test(attempt)
        for item in getattr(report, "qtune_baselines", ()):  # --dist=each sends them twice
            test.rows[item["row"]["name"]] = item
        test.passed &= report.passed and not hasattr(report, "wasxfail")
        test.skipped |= report.skipped and report.when == "setup"
        test.ended |= report.when == "teardown"

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Ctrl-C and ``pytest.exit``; ``-x`` comes as one of two classes called Interrupted."""
        self.interrupted = excinfo.typename != "Interrupted"

    def pytest_internalerror(self) -> None:
        """Whatever a broken run measured is not to be kept."""
        self.interrupted = True

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """All workers collect the same tests; a crashed one says nothing."""
        self.collected = getattr(node, "workeroutput", {}).get(baselines.OUTPUT, self.collected)

    @pytest.hookimpl(wrapper=True, tryfirst=True)  # before any report is written
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None, Any, Any]:
        """Write, once; list the unused."""
        if self.update is not None or self.collected or any(t.rows for t in self.tests.values()):
            self._finish()
        if self.error and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        return (yield)

    def _finish(self) -> None:
        from qtune.errors import BaselineError
        from qtune.testing.baseline_file import write_all

        changes: dict[Path, dict[str, dict[str, Any]]] = {}
        for row, entry in [*self._measured(), *self._unused()]:
            self.rows.append(row)
            if entry is not _NOTHING:
                path = self.config.rootpath / row["file"]
                changes.setdefault(path, {}).setdefault(row["key"], {})[row["name"]] = entry
        try:
            done = write_all(changes) if changes and not self.interrupted else []
            self.written = [baselines.shown_path(self.config, path) for path in done]
        except BaselineError as error:
            self.error = str(error)
            self.rows = [_kept(row, _NO_PLACE) for row in self.rows]
        self.session.baselines += self.rows

    def _measured(self) -> Iterator[tuple[Row, Any]]:
        """What tests asked for, each with the entry to write (``None`` removes)."""
        from qtune.testing.baseline_file import Entry

        for test in self.tests.values():
            for item in test.rows.values():
                row, entry = dict(item["row"]), item["entry"]
                writes = entry is not None or item["remove"]
                if not writes:
                    yield row, _NOTHING
                elif test.passed and test.ended and not self.interrupted:
                    yield row, None if item["remove"] else Entry.from_json(entry)
                else:
                    yield _kept(row, _INTERRUPTED if self.interrupted else _FAILED), _NOTHING

    def _unused(self) -> Iterator[tuple[Row, Any]]:
        """Entries whose test is gone, or did not run, in complete runs of their files."""
        from qtune.errors import BaselineError
        from qtune.testing.baseline_file import BaselineFile, baseline_path

        for source, tests in sorted(self.collected.items()):
            if not self._is_complete(tests):
                continue
            path = baseline_path(self.config.rootpath / source)
            shown = baselines.shown_path(self.config, path)
            try:
                entries = BaselineFile.read(path).entries
            except BaselineError as error:
                self.error = self.error or str(error)
                continue
            yield from self._unused_of(shown, entries, tests)

    def _unused_of(
        self, shown: str, entries: Entries, tests: Mapping[str, str]
    ) -> Iterator[tuple[Row, Any]]:
        keys = set(tests.values())
        skipped = {key for nodeid, key in tests.items() if self.tests[nodeid].skipped}
        for key in sorted((set(entries) - keys) | (set(entries) & skipped)):
            removes = key not in keys and self.update == "all"
            note = _SKIPPED if key in keys else _GONE
            for name, entry in sorted(entries[key].items()):
                row = _unused_row(shown, key, name, entry, _REMOVED if removes else note)
                yield row, None if removes else _NOTHING

    def _is_complete(self, tests: Iterable[str]) -> bool:
        """Whether every test of a file was collected, and ran to its end."""
        return not self._chooses and all(
            nodeid in self.tests and self.tests[nodeid].ended for nodeid in tests
        )

    @property
    def _chooses(self) -> bool:
        """Whether only some tests are collected; what is taken away later never ends."""
        named = any("::" in str(arg) for arg in self.config.args)
        return named or any(self.config.getoption(name, False) for name in ("lf", "stepwise"))

    def pytest_terminal_summary(self, terminalreporter: TerminalReporter) -> None:
        """Say what was written, and what is unused."""
        if self.error:
            terminalreporter.write_line(f"qtune: {self.error}", red=True)
        if self.config.getoption("verbose") >= 0:
            for line in self._lines():
                terminalreporter.write_line(f"qtune: {line}")

    def _lines(self) -> Iterator[str]:
        counts = Counter(row["status"] for row in self.rows if row["status"] in _WRITTEN)
        counts["removed"] = sum(row["note"] == _REMOVED for row in self.rows)
        if self.written:
            numbers = ", ".join(
                f"{count} {status}" for status, count in sorted(counts.items()) if count
            )
            yield f"baselines written to {', '.join(self.written)}: {numbers}"
        if not self.session.active:  # else its table lists them
            yield from (_line(row) for row in self.rows if row["note"] in _NOT_WRITTEN)
            yield from (_line(row) for row in self.rows if row["status"] == "unused")
        yield from self._hints()

    def _hints(self) -> Iterator[str]:
        gone = {r["file"] for r in self.rows if r["status"] == "unused" and r["note"] == _GONE}
        sources = [source for source in self.collected if _file_of(self.config, source) in gone]
        if sources:
            command = shlex.join(["pytest", "--qtune-update=all", *sorted(sources)])
            yield f"remove unused baselines with: {command}"
        if self.update is not None and not any(map(self._fits, self.session.baselines)):
            yield f"--qtune-update={self.update}: no baseline that a test asked for fits"

    def _fits(self, row: Row) -> bool:
        from qtune.testing.baseline import update_fits

        whole = self.update == "new"  # there may be none that is new
        return whole or update_fits(self.update, row["key"], row["name"], exists=True)


def _kept(row: Row, note: str) -> Row:
    """What was to be written and is not."""
    status = {"created": "missing", "updated": "kept"}.get(row["status"])
    return row if status is None else row | {"status": status, "note": note}


def _file_of(config: pytest.Config, source: str) -> str:
    from qtune.testing.baseline_file import baseline_path

    return baselines.shown_path(config, baseline_path(config.rootpath / source))


def _line(row: Row) -> str:
    note = f": {row['note']}" if row["note"] else ""
    return f"{row['status']} baseline {row['key']}::{row['name']} in {row['file']}{note}"


def _unused_row(file: str, key: str, name: str, entry: Entry, note: str) -> Row:
    from qtune.testing.baseline_compare import entry_value

    return {
        "file": file,
        "key": key,
        "name": name,
        "status": "unused",
        "value": None,
        "baseline": entry_value(entry),
        "limit": "",
        "note": note,
    }
