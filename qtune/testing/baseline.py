"""``Baseline``: what a test measured, against what it measured when its baseline was written.

Without pytest::

    baseline = Baseline("__qtune__/net.json", "accuracy", update="new")
    baseline.check("top1", 0.913, max_drop=0.005)
    baseline.save()

With the plugin the fixture ``qtune_baseline`` is one of these, and the plugin saves.
"""

from __future__ import annotations

import fnmatch
import math
import os
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qtune.errors import ArgumentError
from qtune.testing import baseline_file as files
from qtune.testing import baseline_identity as about
from qtune.testing.baseline_compare import (
    Verdict,
    array_rule,
    array_value,
    as_number,
    compare_array,
    compare_number,
    compare_outputs,
    entry_text,
    entry_value,
    notes,
)
from qtune.testing.baseline_file import BaselineFile, Entry, Number
from qtune.testing.baseline_metric import rule_of
from qtune.testing.record import conclude, conclude_all
from qtune.testing.result import AssertionResult, rerun_command

if TYPE_CHECKING:
    from qtune.hbir.module import HbirModule
    from qtune.testing.origin import Origin

CHECK = "baseline"
_SHOWN = 8
"""Digits of a hash in the first line; the text below has all of them."""
NEW, ALL = "new", "all"


@dataclass(frozen=True, slots=True)
class Comparison:
    """What became of one entry.

    ``status``: equal, within (the tolerance), changed, missing, lost (its test did not ask for it),
    stale (its identity differs), created, updated, or kept (it differs, and the update asked for
    was one of others). ``entry``: what to write, ``None`` for nothing; ``remove``: it is to go.
    """

    key: str
    name: str
    status: str
    value: Number | str | None = None
    baseline: Number | str | None = None
    limit: str = ""
    note: str = ""
    entry: Entry | None = None
    remove: bool = False

    @property
    def writes(self) -> bool:
        """Whether the file is to change."""
        return self.entry is not None or self.remove

    def to_dict(self) -> dict[str, Any]:
        """What a report says of it."""
        hidden = ("entry", "remove")
        names = (field.name for field in fields(self) if field.name not in hidden)
        return {name: getattr(self, name) for name in names}


class Baseline:
    """The stored values of one test.

    ``path``: the file, ``__qtune__/<module>.json`` by convention. ``key``: whose values: class,
    function and parameters of a test. ``update``: ``"new"`` accepts values that have no baseline,
    ``"all"`` any, a glob (``*`` and ``?``) those whose ``key::name``, or key, it fits; ``None``
    none. What was accepted is written by ``save``.

    Each check gives an ``AssertionResult`` or raises ``AssertionError``; ``BaselineError`` says
    that the file can't be read. ``comparisons`` lists what became of each entry.
    """

    def __init__(
        self, path: str | os.PathLike[str], key: str, *, update: str | None = None
    ) -> None:
        if not isinstance(key, str) or not key:
            raise ArgumentError(f"Baseline: key must be a text that is not empty, got {key!r}")
        if update is not None and (not isinstance(update, str) or not update):
            raise ArgumentError(
                f"Baseline: update must be 'new', 'all', a glob or None but got {update!r}"
            )
        self.path = Path(path)
        self.key = key
        self.update = update
        self.comparisons: list[Comparison] = []
        self._finished = False
        self._file: BaselineFile | None = None

    def __repr__(self) -> str:
        return f"Baseline({str(self.path)!r}, {self.key!r}, update={self.update!r})"

    @property
    def file(self) -> BaselineFile:
        """What was stored when it was first looked at."""
        if self._file is None:
            self._file = BaselineFile.read(self.path)
        return self._file

    def check(
        self,
        name: str,
        value: Any,
        *,
        max_drop: float | None = None,
        max_rise: float | None = None,
        rtol: float | None = None,
        atol: float | None = None,
        higher_is_better: bool | None = None,
        equal_nan: bool = False,
        identity: Any = None,
        model: str | None = None,
    ) -> AssertionResult:
        """Assert that ``value`` is what it was, or not too much worse.

        ``value``: a number (also a 0-d array or tensor), or an array, tensor or sequence of up to
        1024 numbers. A number may lie ``max_drop`` below and ``max_rise`` above its baseline, in
        its own unit; where that is not given, ``atol + rtol * abs(baseline)`` on the side that is
        worse (``higher_is_better``; the metrics of the registry, such as ``sqnr_db`` or
        ``cosine``, know theirs; any other is worse on both sides), and 0 without a tolerance. An
        element of an array may differ by ``atol + rtol * abs(baseline)``; shape and dtype must be
        equal. NaN is only equal to NaN, and only with ``equal_nan``.

        ``identity``: what the value is about: ``Stages``, a model of theirs, or a mapping of names
        to values. Where it differs from the stored one, the baseline is stale and the check fails.
        ``model``: the model's name in reports.
        """
        __tracebackhide__ = True
        self._claim(name)
        tolerances = {"max_drop": max_drop, "max_rise": max_rise, "rtol": rtol, "atol": atol}
        origin = about.origin_about(identity, model, self.path.stem)
        facts = about.identity_of(identity), about.environment_of(identity)
        number = as_number(name, value)
        if number is None:
            array, rule = array_rule(name, value, tolerances, higher_is_better, equal_nan)
            entry = Entry("array", array_value(array), rule.tolerance, "both", *facts)
            return self._conclude(
                name, entry, lambda old: compare_array(name, array, rule, old), origin
            )
        rule = rule_of(name, **tolerances, higher_is_better=higher_is_better, equal_nan=equal_nan)
        entry = Entry("metric", number, rule.tolerance, rule.direction, *facts)
        if math.isnan(number) and not equal_nan:
            return self._refuse_nan(name, entry, origin)
        return self._conclude(name, entry, lambda old: compare_number(number, rule, old), origin)

    def outputs(
        self,
        name: str,
        module: HbirModule,
        inputs: Any,
        *,
        identity: Any = None,
        model: str | None = None,
    ) -> AssertionResult:
        """Assert that an integer HBIR module still has exactly the stored outputs on ``inputs``.

        Stored are the sha256 of the outputs and that of all scales. Equal scales must give equal
        bits. Other scales on another CPU capability are no failure but a note: scales that are
        calibrated anew may differ there in their last digits (docs/numerics.md section 6); check a
        metric beside, or pin the module in a committed ``.bc``. ``identity`` defaults to what the
        module comes from; the inputs always belong to it. ``model``: its name in reports.
        """
        __tracebackhide__ = True
        from qtune.arith_fast.capability import provenance
        from qtune.testing.bit_exact import output_hash
        from qtune.testing.content import digest

        self._claim(name)
        _check_integer(name, module)
        source = module if identity is None and hasattr(module, "qtune_origin") else identity
        known = about.identity_of(source) | {"inputs": about.short(digest(inputs))}
        if module.march:
            known.setdefault("march", module.march)
        value = {"sha256": output_hash(module, inputs), "scales": about.scales_digest(module)}
        environment = about.environment_of(source) | about.environment_of(
            {name: provenance()[name] for name in ("cpu_capability", "threads")}
        )
        entry = Entry("outputs", value, identity=known, environment=environment)
        origin = about.origin_about(source, model, type(module).__name__)
        return self._conclude(name, entry, lambda old: compare_outputs(entry, old), origin)

    def finish(self) -> None:
        """Assert that every stored entry of the key was asked for; to be called at the end.

        Under an update that fits, what was not asked for is removed instead.
        """
        __tracebackhide__ = True
        self._finished = True
        asked = {item.name for item in self.comparisons}
        failures = []
        for name in self.file.names(self.key):
            if name in asked:
                continue
            stored = entry_text(self.file.entries[self.key][name])
            if self._may_write(name, exists=True):
                note = "removed: its test no longer asks for it"
                self.comparisons.append(
                    Comparison(self.key, name, "updated", None, stored, note=note, remove=True)
                )
                continue
            self.comparisons.append(Comparison(self.key, name, "lost", None, stored))
            failures.append(self._lost(name, stored))
        if failures:
            conclude_all(failures)

    def save(self) -> bool:
        """Write what was accepted, merged with what is in the file; whether the file changed."""
        rows = [(item.key, item.name, item.entry) for item in self.comparisons if item.writes]
        return files.write(self.path, files.changes_of(rows))

    def _claim(self, name: str) -> None:
        if not isinstance(name, str) or not name:
            raise ArgumentError(f"a baseline's name is a text that is not empty, got {name!r}")
        if self._finished:
            raise ArgumentError(
                f"{self.key} checked the baseline {name!r} behind its end; check it in the test's "
                "body, or in its fixtures before they yield"
            )
        if any(item.name == name for item in self.comparisons):
            raise ArgumentError(
                f"{self.key} checked the baseline {name!r} twice; give each value a name of its own"
            )

    def _may_write(self, name: str, *, exists: bool) -> bool:
        return update_fits(self.update, self.key, name, exists=exists)

    def _conclude(
        self, name: str, entry: Entry, compare: Callable[[Entry], Verdict], origin: Origin
    ) -> AssertionResult:
        __tracebackhide__ = True
        old = self.file.get(self.key, name)
        may_write = self._may_write(name, exists=old is not None)
        value = entry_value(entry)
        if old is None:
            verdict = self._missing(name, entry)
            status = "created" if may_write else "missing"
        else:
            verdict = self._stale(name, entry, old) or compare(old)
            verdict = replace(verdict, note=notes(verdict.note, entry, old))
            status = self._status(verdict.status, may_write)
        self.comparisons.append(
            Comparison(
                self.key,
                name,
                status,
                value,
                None if old is None else entry_value(old),
                verdict.limit,
                verdict.note,
                entry if may_write and not _is_same(entry, old) else None,
            )
        )
        return conclude(self._result(name, entry, verdict, status, origin))

    def _status(self, found: str, may_write: bool) -> str:
        if found == "equal":
            return found
        if may_write:
            return "updated"
        return "kept" if self.update is not None and found in ("changed", "stale") else found

    def _result(
        self, name: str, entry: Entry, verdict: Verdict, status: str, origin: Origin
    ) -> AssertionResult:
        ok = status in ("equal", "within", "created", "updated")
        note = f"note: {verdict.note}" if verdict.note else ""
        advice = "" if ok else self._advice(verdict.status)
        accepted = ok and verdict.status in ("missing", "changed", "stale")
        return AssertionResult(
            check=CHECK,
            model=origin.model,
            ok=ok,
            where=name,
            got=verdict.got,
            limit=f"none ({status})" if accepted else verdict.limit,
            metrics={name: entry.value} if entry.kind == "metric" else {},
            table="\n".join(text for text in (verdict.table, note) if text and not ok) or note,
            advice=advice,
            baseline=verdict.stored,
            artefact=origin.artefact,
            provenance=origin.provenance,
        )

    def _missing(self, name: str, entry: Entry) -> Verdict:
        text = f"no baseline for {self.key}::{name} in {_shown(self.path)}"
        return Verdict("missing", entry_text(entry), "a baseline", "", text)

    def _stale(self, name: str, entry: Entry, old: Entry) -> Verdict | None:
        """Identity fields, or the kind of value, that differ."""
        found = about.identity_differences(entry.identity, old.identity)
        if not found and entry.kind != old.kind:
            return Verdict("changed", entry.kind, old.kind, entry_text(old))
        if not found:
            return None
        lines = [f"stale baseline for {self.key}::{name} in {_shown(self.path)}:"]
        lines += [f"  {field} was {then}, is now {now}" for field, then, now in found]
        lines.append(f"  the value was {entry_text(old)}, is now {entry_text(entry)}")
        field, then, now = found[0]
        got, limit = (f"{field} {text[:_SHOWN]}" for text in (now, then))  # the name needs room
        return Verdict("stale", got, limit, entry_text(old), "\n".join(lines))

    def _lost(self, name: str, stored: str) -> AssertionResult:
        text = f"{self.key} ended without asking for {name}, which {_shown(self.path)} holds"
        return AssertionResult(
            check=CHECK,
            model=self.path.stem,
            ok=False,
            where=name,
            got="not asked for",
            limit="asked for by its test",
            table=text,
            advice=self._advice("lost"),
            baseline=stored,
        )

    def _refuse_nan(self, name: str, entry: Entry, origin: Origin) -> AssertionResult:
        """NaN without ``equal_nan``: no baseline, and equal to none."""
        __tracebackhide__ = True
        old = self.file.get(self.key, name)
        stored = "" if old is None else entry_text(old)
        status, limit = "missing" if old is None else "changed", "a number, or equal_nan=True"
        text = "NaN is no baseline, and equal to none, unless equal_nan=True says that it may be"
        verdict = Verdict(status, "nan", limit, stored, text)
        value = None if old is None else entry_value(old)
        self.comparisons.append(Comparison(self.key, name, status, entry.value, value, limit, text))
        return conclude(self._result(name, entry, verdict, status, origin))

    def _advice(self, status: str) -> str:
        which, why = {
            "missing": (NEW, "To store what was measured, and then commit the file"),
            "lost": (ALL, "Ask for it again, or remove it"),
            "stale": (ALL, "If that is meant, measure again"),
        }.get(status, (ALL, "If the change is meant, accept it, and commit the file"))
        command = rerun_command()
        if command is None:
            return f"{why}: Baseline(..., update={which!r}) and save()"
        return f"{why}: {command.replace('pytest', f'pytest --qtune-update={which}', 1)}"


def update_fits(update: str | None, key: str, name: str, *, exists: bool) -> bool:
    """Whether an update (``new``, ``all``, a glob, ``None``) is one of the entry ``key::name``.

    In a glob ``*`` and ``?`` are special, brackets are those of parameters.
    """
    if update is None:
        return False
    if update in (NEW, ALL):
        return update == ALL or not exists
    pattern = update.replace("[", "[[]")
    return any(fnmatch.fnmatchcase(text, pattern) for text in (f"{key}::{name}", key))


def _is_same(entry: Entry, old: Entry | None) -> bool:
    """Whether only the environment differs: an update then leaves no line in a diff."""
    if old is None:
        return False
    return replace(entry, environment=old.environment).to_json() == old.to_json()


def _check_integer(name: str, module: Any) -> None:
    from qtune.testing.arguments import check_hbir

    check_hbir("baseline.outputs", "module", module)
    if module.stage != "quantized":
        raise ArgumentError(
            f"baseline.outputs({name!r}): only an integer module keeps its bits on every machine; "
            f"pass stages.quantized_bc, or check a metric (got the stage {module.stage!r})"
        )


def _shown(path: Path) -> str:
    """The path as a reader knows it: from the working folder, if it lies below."""
    try:
        return path.absolute().relative_to(Path.cwd()).as_posix()
    except ValueError:
        return str(path)
