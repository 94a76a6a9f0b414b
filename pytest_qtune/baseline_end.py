"""The end of a run with baselines, on the controller: what is written, and which are unused."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_qtune import baselines, partial

if TYPE_CHECKING:
    from _pytest.terminal import TerminalReporter

    from pytest_qtune.baseline_run import BaselineRun
    from qtune.testing.baseline_file import Entries, Entry

Row = dict[str, Any]
_WRITTEN = ("created", "updated")
_NOTHING: Any = object()
"""No change, where ``None`` removes."""
_GONE, _SKIPPED = "there is no such test", "its test was skipped"
_REMOVED = f"{_GONE}; removed"
_NO_SOURCE = "there is no such test file; rename it with its tests, or delete it"
_FAILED = "not written: its test did not pass"
_INTERRUPTED = "not written: the run was interrupted"
_NO_PLACE = "not written: the file can't be written"
_NOT_WRITTEN = (_FAILED, _INTERRUPTED, _NO_PLACE)


class BaselineEnd:
    """What becomes of the baselines of ``run``."""

    def __init__(self, run: BaselineRun) -> None:
        self.run = run
        self.config = run.config
        self.rows: list[Row] = []
        self.written: list[str] = []
        self.error = ""

    def settle(self) -> None:
        """Write what is to be written, and give the rows to the run's data."""
        from qtune.errors import BaselineError
        from qtune.testing.baseline_file import write_all

        changes: dict[Path, dict[str, dict[str, Any]]] = {}
        for row, entry in [*self._measured(), *self._unused(), *self._without_source()]:
            self.rows.append(row)
            if entry is not _NOTHING:
                path = self.config.rootpath / row["file"]
                changes.setdefault(path, {}).setdefault(row["key"], {})[row["name"]] = entry
        try:
            done = write_all(changes) if changes and not self.run.interrupted else []
            self.written = [baselines.shown_path(self.config, path) for path in done]
        except BaselineError as error:
            self.error = str(error)
            self.rows = [_kept(row, _NO_PLACE) for row in self.rows]
        self.run.session.baselines += self.rows

    def _measured(self) -> Iterator[tuple[Row, Any]]:
        """What tests asked for, each with the entry to write (``None`` removes)."""
        from qtune.testing.baseline_file import Entry

        for test in self.run.tests.values():
            for item in test.rows.values():
                row, entry = dict(item["row"]), item["entry"]
                writes = entry is not None or item["remove"]
                if not writes:
                    yield row, _NOTHING
                elif test.passed and test.ended and not self.run.interrupted:
                    yield row, None if item["remove"] else Entry.from_json(entry)
                else:
                    yield _kept(row, _INTERRUPTED if self.run.interrupted else _FAILED), _NOTHING

    def _unused(self) -> Iterator[tuple[Row, Any]]:
        """Entries whose test is gone, or did not run, in complete runs of their files."""
        from qtune.testing.baseline_file import baseline_path

        for source, tests in sorted(self.run.collected.items()):
            if not self._is_complete(tests):
                continue
            path = baseline_path(self.config.rootpath / source)
            shown = baselines.shown_path(self.config, path)
            yield from self._unused_of(shown, self._read(path), tests)

    def _without_source(self) -> Iterator[tuple[Row, Any]]:
        """Entries whose test file is gone, in complete runs; never removed, it may have moved."""
        if partial.reason(self.config, self.run.session.deselected):
            return
        for shown in sorted(self.run.files):
            entries = self._read(self.config.rootpath / shown)
            rows = [(key, *item) for key in sorted(entries) for item in entries[key].items()]
            yield from ((_unused_row(shown, *row, _NO_SOURCE), _NOTHING) for row in rows)

    def _read(self, path: Path) -> Entries:
        from qtune.errors import BaselineError
        from qtune.testing.baseline_file import BaselineFile

        try:
            return BaselineFile.read(path).entries
        except BaselineError as error:
            self.error = self.error or str(error)
            return {}

    def _unused_of(
        self, shown: str, entries: Entries, tests: Mapping[str, str]
    ) -> Iterator[tuple[Row, Any]]:
        keys = set(tests.values())
        skipped = {key for nodeid, key in tests.items() if self.run.tests[nodeid].skipped}
        for key in sorted((set(entries) - keys) | (set(entries) & skipped)):
            removes = key not in keys and self.run.update == "all"
            note = _SKIPPED if key in keys else _GONE
            for name, entry in sorted(entries[key].items()):
                row = _unused_row(shown, key, name, entry, _REMOVED if removes else note)
                yield row, None if removes else _NOTHING

    def _is_complete(self, tests: Iterable[str]) -> bool:
        """Whether every test of a file was collected, and ran to its end."""
        return not self._chooses and all(
            nodeid in self.run.tests and self.run.tests[nodeid].ended for nodeid in tests
        )

    @property
    def _chooses(self) -> bool:
        """Whether only some tests are collected; what is taken away later never ends."""
        named = any("::" in str(arg) for arg in self.config.args)
        return named or any(self.config.getoption(name, False) for name in ("lf", "stepwise"))

    def show(self, terminalreporter: TerminalReporter) -> None:
        """Say what was written, even if pytest is quiet; and what is unused."""
        if self.error:
            terminalreporter.write_line(f"qtune: {self.error}", red=True)
        quiet = self.config.getoption("verbose") < 0
        for line in self._changes() if quiet else self._lines():
            terminalreporter.write_line(f"qtune: {line}")

    def _changes(self) -> Iterator[str]:
        """What was written; that nothing fits, where a pattern was given."""
        counts = Counter(row["status"] for row in self.rows if row["status"] in _WRITTEN)
        counts["removed"] = sum(row["note"] == _REMOVED for row in self.rows)
        if self.written:
            numbers = ", ".join(
                f"{count} {status}" for status, count in sorted(counts.items()) if count
            )
            yield f"baselines written to {', '.join(self.written)}: {numbers}"
        update = self.run.update
        if update is not None and not any(map(self._fits, self.run.session.baselines)):
            yield f"--qtune-update={update}: no baseline that a test asked for fits{_meant(update)}"

    def _lines(self) -> Iterator[str]:
        yield from self._changes()
        if not self.run.session.active:  # else its table lists them
            yield from (_line(row) for row in self.rows if row["note"] in _NOT_WRITTEN)
            yield from (_line(row) for row in self.rows if row["status"] == "unused")
        yield from self._hints()

    def _hints(self) -> Iterator[str]:
        gone = {r["file"] for r in self.rows if r["status"] == "unused" and r["note"] == _GONE}
        sources = [source for source in self.run.collected if _file_of(self.config, source) in gone]
        if sources:
            command = shlex.join(["pytest", "--qtune-update=all", *sorted(sources)])
            yield f"remove unused baselines with: {command}"

    def _fits(self, row: Row) -> bool:
        from qtune.testing.baseline import update_fits

        whole = self.run.update == "new"  # there may be none that is new
        return whole or update_fits(self.run.update, row["key"], row["name"], exists=True)


def _meant(update: str) -> str:
    """A word that may be mistyped; it was read as a pattern."""
    from difflib import get_close_matches

    near = get_close_matches(update, ("new", "all"), n=1)
    return f"; did you mean {near[0]}?" if near and update != near[0] else ""


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
