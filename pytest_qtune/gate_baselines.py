"""Gates ``vs baseline``: their stored values lie in ``<rootdir>/__qtune__/gates.json``."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

import pytest

from pytest_qtune import gate_values, options
from pytest_qtune.baselines import FOLDER, GATES
from pytest_qtune.gate_expression import BASELINE, Gate
from pytest_qtune.gate_values import Entry, Measured

_UPDATE = "--qtune-update"
_BETTER = {">=": "higher", ">": "higher", "<=": "lower", "<": "lower", "==": "both"}


class Stored:
    """The stored values of one run's gates: compared, and written where an update asks for it.

    ``partial``: why the run is partial. Its values may be those of a part of the checks, so it
    writes nothing. ``failed``: ids of the tests that failed; what they measured is not written.
    """

    def __init__(self, config: pytest.Config, partial: str, failed: Collection[str]) -> None:
        self.path = config.rootpath / FOLDER / GATES
        self.shown = f"{FOLDER}/{GATES}"
        self.update: str | None = options.get(config, "update")
        self.partial = partial
        self.failed = failed
        self.rows: dict[tuple[str, str], Entry] = {}
        self._changes: dict[str, dict[str, Any]] = {}
        self._read: Any = None

    def judge(self, gate: Gate, model: str, measured: Measured) -> Entry:
        """The outcome of a gate whose number bounds the difference from the stored value."""
        from qtune.errors import BaselineError

        try:
            return self._judge(gate, model, measured)
        except BaselineError as error:
            return gate_values.failed(gate, model, measured, str(error))

    def _judge(self, gate: Gate, model: str, measured: Measured) -> Entry:
        from qtune.testing.baseline import update_fits
        from qtune.testing.baseline_identity import identity_differences, identity_of

        name, identity = gate_values.stored_name(gate), identity_of(measured.provenance)
        old = self._file().get(model, name)
        fits = update_fits(self.update, model, name, exists=old is not None)
        kept = fits and self._why_kept(measured)
        writes = fits and not kept
        stored = None if old is None else float(old.value)
        stale = [] if old is None else identity_differences(identity, old.identity)
        if writes:
            self._set(gate, model, measured, identity)
            judged = gate_values.judge(gate, model, measured, stored, written=True)
        elif stored is None:
            judged = self._missing(gate, model, measured)
        elif stale:
            field, then, now = stale[0]
            text = (
                f"stale baseline: {field} was {then}, is now {now}; measure again, with {_UPDATE}"
            )
            judged = gate_values.failed(gate, model, measured, text) | {"baseline": stored}
        else:
            judged = gate_values.judge(gate, model, measured, stored)
        status = self._status(judged, stored, bool(stale), writes)
        note = f"not written: {kept}" if kept else ""
        self._row(model, name, status, measured.value, stored, gate.limit, note)
        return judged

    def _why_kept(self, measured: Measured) -> str:
        """Why an update that fits does not write a value, empty if it does."""
        if self.partial:
            return self.partial
        if measured.test in self.failed:
            return "its test did not pass"
        return "" if math.isfinite(measured.value) else "it is no finite number"

    def _missing(self, gate: Gate, model: str, measured: Measured) -> Entry:
        text = f"no baseline in {self.shown}"
        if self.partial:
            skipped = gate_values.failed(gate, model, measured, f"{text} ({self.partial})")
            return skipped | {"outcome": gate_values.SKIPPED}
        text += f"; look at the value, then store it with {_UPDATE}=new"
        return gate_values.failed(gate, model, measured, text)

    def _status(self, judged: Entry, stored: float | None, stale: bool, writes: bool) -> str:
        """As those of the baselines of tests."""
        equal = stored == judged["value"] and not stale
        if stored is None:
            return "created" if writes else "missing"
        if equal:
            return "equal"
        if writes:
            return "updated"
        if judged["outcome"] == gate_values.PASSED:
            return "within"
        return "kept" if self.update is not None else ("stale" if stale else "changed")

    def _set(self, gate: Gate, model: str, measured: Measured, identity: dict[str, str]) -> None:
        from qtune.testing.baseline_file import Entry as StoredEntry
        from qtune.testing.baseline_identity import environment_of

        entry = StoredEntry(
            "metric",
            measured.value,
            direction=_BETTER[gate.op],
            identity=identity,
            environment=environment_of(measured.provenance),
        )
        self._changes.setdefault(model, {})[gate_values.stored_name(gate)] = entry

    def save(self, entries: list[Entry]) -> list[Entry]:
        """Write what an update accepted, list what no gate asked for.

        Return the outcomes: gates whose values could not be written fail.
        """
        from qtune.errors import BaselineError
        from qtune.testing.baseline_file import write

        try:
            self._list_unused()
            if self._changes:
                write(self.path, self._changes)
        except BaselineError as error:
            return [
                entry | {"outcome": gate_values.FAILED, "message": f"{entry['model']}: {error}"}
                if entry["relation"] == BASELINE
                else entry
                for entry in entries
            ]
        return entries

    def _list_unused(self) -> None:
        """What no gate asks for; ``--qtune-update=all`` removes it.

        Only a complete run without failures knows: a test that failed may not have come to measure.
        """
        asked = set(self.rows)
        unknown = self.partial or self.failed
        for model, named in {} if unknown else self._file().entries.items():
            for name, entry in named.items():
                if (model, name) in asked:
                    continue
                removed = self.update == "all"
                if removed:
                    self._changes.setdefault(model, {})[name] = None
                status, note = (
                    ("updated", "removed: no gate asks for it") if removed else ("unused", "")
                )
                self._row(model, name, status, None, entry.value, "", note)

    def _row(
        self,
        model: str,
        name: str,
        status: str,
        value: float | None,
        baseline: float | None,
        limit: str,
        note: str,
    ) -> None:
        from qtune.testing.baseline import Comparison

        compared = Comparison(model, name, status, value, baseline, limit, note)
        self.rows[model, name] = {"file": self.shown, **compared.to_dict()}

    def _file(self) -> Any:
        from qtune.testing.baseline_file import BaselineFile

        if self._read is None:
            self._read = BaselineFile.read(self.path)
        return self._read
