"""``qtune gate``: gate files without pytest."""

from __future__ import annotations

import argparse
import os
import shlex
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from qtune.cli import cache
from qtune.cli.models import march_of, torch_threads
from qtune.cli.options import MARCH_VARIABLE
from qtune.cli.outcome import Gate, InputError, Outcome
from qtune.report.progress import progress
from qtune.report.table import text_table
from qtune.report.words import counted
from qtune.testing.baseline import Baseline
from qtune.testing.baseline_file import BaselineFile, baseline_path, in_ci
from qtune.testing.failure import one_line
from qtune.testing.gatefile import Check, GateFile, read
from qtune.testing.gatefile.run import GateRun, Settings, gate_run
from qtune.testing.result import AssertionResult

COLUMNS = ("", "check", "where", "got", "limit", "baseline")
OK, FAIL, SKIP, XFAIL, ERROR = "ok", "FAIL", "skip", "xfail", "ERROR"
_IS_BASELINE = "baseline"


@dataclass(frozen=True, slots=True)
class Found:
    """What one check gave.

    ``mark``: ok, FAIL, skip, xfail (it failed, as the file says), or ERROR: it could not be made,
    for the reason in ``error``.
    """

    file: GateFile
    check: Check
    results: Sequence[AssertionResult] = ()
    error: str = ""

    @property
    def place(self) -> str:
        """``resnet.qtune.toml:14``."""
        return f"{self.file.shown}:{self.file.check_line(self.check)}"

    @property
    def mark(self) -> str:
        """Of the whole check."""
        if self.check.skip:
            return SKIP
        if self.error:
            return ERROR
        marks = [self.mark_of(result) for result in self.results]
        return next((mark for mark in (FAIL, XFAIL) if mark in marks), OK)

    def mark_of(self, result: AssertionResult) -> str:
        """Of one result."""
        bad = {layer.name for layer in result.layers if not layer.ok}
        is_known = bool(self.check.xfail) or (bool(bad) and bad <= {*self.check.xfail_layers})
        return OK if result else (XFAIL if is_known else FAIL)

    def rows(self) -> Iterator[tuple[str, ...]]:
        """Rows of the table, one for each result."""
        name = self.check.name
        if self.check.skip:
            yield (SKIP, name, "", self.check.skip, "", "")
        if self.error:
            yield (ERROR, name, "", "could not be made", "", "")
        for result in self.results:
            yield (
                self.mark_of(result),
                name,
                result.where,
                result.got,
                result.limit,
                result.baseline,
            )

    def gates(self) -> Iterator[Gate]:
        """One gate for each result, a failed one for a check that could not be made."""
        if self.error:
            yield Gate(f"{self.place} {self.check.name}", False, None, "a result", got=self.error)
        for result in self.results:
            key = next(iter(result.limits), result.where)
            where = {"where": result.where} if result.where else {}
            ok = self.mark_of(result) != FAIL
            value = result.metrics.get(key)
            name = f"{self.place} {self.check.name}"
            yield Gate(name, ok, value, result.limit, where, result.got)

    def to_dict(self) -> dict[str, Any]:
        """Plain containers."""
        return {
            "file": self.file.shown,
            "line": self.file.check_line(self.check),
            "check": self.check.name,
            "outcome": self.mark,
            "error": self.error,
            "reason": self.check.skip or self.check.xfail or self.check.xfail_layers,
            "results": [result.to_dict() for result in self.results],
        }


def run(args: argparse.Namespace) -> Outcome:
    """Run all checks of all files, whatever fails; each file is read before any runs."""
    _check_update(args)
    files = [read(path) for path in args.files]
    march = args.march or os.environ.get(MARCH_VARIABLE)
    store = cache.store(keeps=not args.no_cache)
    settings = Settings(store, march_of(march).value if march else None)
    runs = [gate_run(file, Path.cwd(), settings) for file in files]
    for gates in runs:
        _ = gates.subject.march  # a file without any is refused
    found: list[Found] = []
    written: list[Path] = []
    with torch_threads(args.threads):
        for gates in runs:
            with gates.active():
                found += [
                    _check(gates, check, args, written)
                    for check in progress(gates.file.checks, gates.file.shown, unit="check")
                ]
    facts = {"gate_files": ", ".join(file.shown for file in files)}
    if any(file.model.march is None for file in files):
        facts["march"] = str(settings.march)
    gates_found = [gate for one in found for gate in one.gates()]
    result = {"checks": [one.to_dict() for one in found]}
    text = _text(found, [note for note in (*_unused(files), cache.counts(store)) if note])
    return Outcome(
        facts, result, text, gates_found, list(dict.fromkeys(written)), gates_in_text=True
    )


def _check(gates: GateRun, check: Check, args: argparse.Namespace, written: list[Path]) -> Found:
    """One check; what it stores is written at once. One that can't be made stops no other."""
    if check.skip:
        return Found(gates.file, check)
    try:
        return _made(gates, check, args.update, written)
    except Exception as error:  # noqa: BLE001 - the user's model and data may raise anything
        if args.traceback or args.verbose:
            traceback.print_exc()
        return Found(gates.file, check, error=one_line(error))


def _made(gates: GateRun, check: Check, update: str | None, written: list[Path]) -> Found:
    if check.xfail_layers:
        gates.operators(check)  # a name that does not exist is found here
    path = baseline_path(gates.file.path)
    stored = Baseline(path, check.name, update=update)
    results = gates.results(check, stored)
    if stored.save():
        written.append(Path(os.path.relpath(path)))
    return Found(gates.file, check, [_advised(result, gates.file) for result in results])


def _advised(result: AssertionResult, file: GateFile) -> AssertionResult:
    """The advice of a stored value names the command that writes it."""
    if result.ok or result.check != _IS_BASELINE:
        return result
    which = "all" if result.baseline else "new"
    command = f"qtune gate {shlex.quote(file.shown)} --update={which}"
    return replace(result, advice=f"If that is meant, store it and commit the file: {command}")


def _check_update(args: argparse.Namespace) -> None:
    given = args.update
    if given is None:
        return
    if Path(given).exists():
        raise InputError(
            f"--update: it took the file {given!r} for its value; write the files first, or "
            f"--update=all"
        )
    if in_ci() and not args.update_in_ci:
        raise InputError(
            "--update: CI is set, where nobody looks at what is written; run it at your desk and "
            "commit the files, or give --update-in-ci as well"
        )


def _unused(files: Sequence[GateFile]) -> Iterator[str]:
    """Stored values that no check of their file asks for."""
    for file in files:
        path = baseline_path(file.path)
        entries = BaselineFile.read(path).entries if path.is_file() else {}
        names = {check.name for check in file.checks}
        yield from (
            f"unused baseline {key} in {os.path.relpath(path)}: no check of that name"
            for key in entries
            if key not in names
        )


def _text(found: Sequence[Found], notes: Sequence[str]) -> str:
    """A table for each model, the message of each failure, and the counts."""
    parts = []
    for shown in dict.fromkeys(one.file.shown for one in found):
        rows = [row for one in found if one.file.shown == shown for row in one.rows()]
        rows.sort(key=lambda row: row[0] not in (FAIL, ERROR))
        parts.append(f"{shown}:\n{text_table(rows, COLUMNS, style='plain')}")
    parts += [
        f"{one.place}: {one.check.name}\n{result.message()}"
        for one in found
        for result in one.results
        if one.mark_of(result) == FAIL
    ]
    parts += _errors(found)
    marks = [one.mark for one in found]
    order = (FAIL, ERROR, XFAIL, SKIP, OK)
    counts = [f"{marks.count(mark)} {mark}" for mark in order if mark in marks]
    total = f"{counted(len(found), 'check')}: {', '.join(counts)}"
    return "\n\n".join([*parts, *notes, total])


def _errors(found: Sequence[Found]) -> Iterator[str]:
    """Each reason once, with the checks that could not be made for it."""
    places: dict[str, list[str]] = {}
    for one in found:
        if one.error:
            places.setdefault(one.error, []).append(f"{one.place}: {one.check.name}")
    yield from ("\n".join([*where, error]) for error, where in places.items())
