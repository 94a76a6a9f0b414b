"""The file of baselines, ``__qtune__/<module>.json`` beside the test: read, merge, write.

::

    {"entries": {"TestNet.test_accuracy[nash-e]": {"sqnr_db": {
        "kind": "metric", "value": 31.2, "direction": "higher", "tolerance": {"max_drop": 0.5},
        "identity": {"march": "nash-e"}, "environment": {"torch": "2.13.0"}}}},
     "schema": 1}

Keys are sorted and every field has its line, so that a diff can be read. Standard library and
``filelock`` only: the process that writes need not load torch.
"""

from __future__ import annotations

import getpass
import hashlib
import json
import math
import os
import re
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from qtune.errors import BaselineError
from qtune.report.files import atomic_path, remove_remains

SCHEMA = 1
FOLDER = "__qtune__"
KINDS = ("metric", "outputs", "array")
DIRECTIONS = ("higher", "lower", "both")
"""What is better: a higher value, a lower one; ``both``: neither, any change counts."""
_CONFLICT = re.compile(r"^(<{7} |={7}\s*$|>{7} )", re.MULTILINE)
_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_LOCK_SECONDS = 60.0
_COLUMNS = 96

Number = int | float


@dataclass(frozen=True, slots=True)
class Entry:
    """One stored value.

    ``kind``: ``metric`` (``value`` is a number; NaN and infinities too), ``outputs`` (``sha256``
    and ``scales``) or ``array`` (``dtype``, ``shape`` and ``values``, one text per row).
    ``tolerance``: what the check allowed when it was written, ``direction``: what is better.
    ``identity``: what the value is about; where it differs the value is stale. ``environment``:
    what it was measured with; where it differs, that is worth a note.
    """

    kind: str
    value: Any
    tolerance: Mapping[str, float] = field(default_factory=dict)
    direction: str = "both"
    identity: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Containers that JSON holds; empty fields are left out."""
        data: dict[str, Any] = {"kind": self.kind, "value": _json_number(self.value)}
        if self.kind != "outputs":
            data["direction"] = self.direction
        for name in ("tolerance", "identity", "environment"):
            content = getattr(self, name)
            if content:
                data[name] = {key: _json_number(value) for key, value in content.items()}
        return data

    @classmethod
    def from_json(cls, data: Any) -> Entry:
        """What ``to_json`` gave; ``ValueError`` says what is wrong with anything else."""
        if not isinstance(data, dict) or data.get("kind") not in KINDS or "value" not in data:
            raise ValueError(f"an entry needs a value and a kind out of {', '.join(KINDS)}")
        kind, value = str(data["kind"]), _number(data["value"])
        if kind == "metric" and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise ValueError(f"the value of a metric is a number, not {value!r}")
        if kind != "metric" and not isinstance(value, dict):
            raise ValueError(f"the value of {kind} is an object, not {value!r}")
        direction = data.get("direction", "both")
        if direction not in DIRECTIONS:
            raise ValueError(f"direction is one of {', '.join(DIRECTIONS)}, not {direction!r}")
        tolerance, identity, environment = (
            _mapping(name, data.get(name, {})) for name in ("tolerance", "identity", "environment")
        )
        bounds = {name: _number(bound) for name, bound in tolerance.items()}
        _check_values("tolerance", bounds, (int, float), "numbers")
        _check_values("identity", identity, (str,), "texts")
        _check_values("environment", environment, (str,), "texts")
        return cls(kind, value, bounds, direction, identity, environment)


Entries = Mapping[str, Mapping[str, Entry]]
"""Entries by key (class, function and parameters of the test) and name."""
Changes = Mapping[str, Mapping[str, Entry | None]]
"""What to write by key and name; ``None`` removes."""


@dataclass(frozen=True, slots=True)
class BaselineFile:
    """What a file of baselines holds."""

    path: Path
    entries: Entries

    @classmethod
    def read(cls, path: Path) -> BaselineFile:
        """Read a file; one that is not there holds nothing.

        Raises ``BaselineError`` for a file that is damaged, has conflict markers of git in it, or
        was written by a newer qtune.
        """
        path = Path(path)
        try:
            text = path.read_bytes().decode("utf-8-sig")
        except (FileNotFoundError, NotADirectoryError):
            return cls(path, {})
        except (OSError, UnicodeDecodeError) as error:
            raise BaselineError(f"{path} can't be read: {error}; {_RESTORE}") from None
        return cls(path, _parse(path, text))

    def get(self, key: str, name: str) -> Entry | None:
        """The entry, ``None`` if there is none."""
        return self.entries.get(key, {}).get(name)

    def names(self, key: str) -> tuple[str, ...]:
        """Names of the entries under ``key``."""
        return tuple(self.entries.get(key, {}))


_RESTORE = "restore it from version control, or delete it and write it again with --qtune-update"


_STEMS = (".py", ".toml")


def baseline_path(source: Path) -> Path:
    """The file of baselines of a test file or gate file: ``__qtune__/<name>.json`` beside it.

    A text with doctests keeps its suffix: ``net.txt`` and ``net.py`` have files of their own.
    """
    name = source.stem if source.suffix in _STEMS else source.name
    return source.parent / FOLDER / f"{name}.json"


def sources(path: Path) -> tuple[Path, ...]:
    """The files that may own the baselines at ``path``: those whose ``baseline_path`` it is."""
    beside = path.parent.parent / path.stem
    return (beside, *(beside.with_name(path.stem + suffix) for suffix in _STEMS))


def write(path: Path, changes: Changes) -> bool:
    """Merge ``changes`` into the file at ``path``; whether it changed."""
    return bool(write_all({path: changes}))


def write_all(changes: Mapping[Path, Changes]) -> list[Path]:
    """Merge changes into several files; return those that changed.

    The files are locked, read again and written beside their places, then renamed one after the
    other: what others wrote meanwhile stays, and a killed run leaves the old files or the new ones.
    Links stay, the files behind them are written. Raises ``BaselineError`` as
    ``BaselineFile.read``, and where a folder can't be written.
    """
    from filelock import FileLock

    paths = sorted(changes)
    try:
        with ExitStack() as locks:
            for lock in sorted({_lock_path(path) for path in paths}):
                locks.enter_context(FileLock(lock, timeout=_LOCK_SECONDS))
            return _write_locked({path: changes[path] for path in paths})
    except OSError as error:  # also a lock that somebody else does not give back
        shown = ", ".join(map(str, paths))
        raise BaselineError(f"baselines can't be written to {shown}: {error}") from error


def _write_locked(changes: Mapping[Path, Changes]) -> list[Path]:
    written: list[Path] = []
    with ExitStack() as renames:
        for path, change in changes.items():
            before = BaselineFile.read(path).entries
            after = _merged(before, change)
            if _plain(after) != _plain(before):
                place = path.resolve()
                remove_remains(place)
                partial = renames.enter_context(atomic_path(place))
                partial.write_bytes(to_text(after).encode("utf-8", "backslashreplace"))
                written.append(path)
    return written


def to_text(entries: Entries) -> str:
    """The text of a file: sorted keys, one field per line, a line end after the last."""
    # lone surrogates are encoded as \\udcxx, which is how JSON spells them
    return _pretty({"schema": SCHEMA, "entries": _plain(entries)}, "") + "\n"


def _pretty(value: Any, margin: str) -> str:
    """JSON with sorted keys; what is small and has no parts stands on one line."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=False)
    parts: Iterable[Any] = ()
    if isinstance(value, dict | list):
        parts = value.values() if isinstance(value, dict) else value
    has_parts = any(isinstance(part, dict | list) and part for part in parts)
    if not has_parts and (len(text) + len(margin) <= _COLUMNS or not parts):
        return text
    inner = margin + " "
    if isinstance(value, dict):
        items = [
            f"{json.dumps(key, ensure_ascii=False)}: {_pretty(value[key], inner)}"
            for key in sorted(value)
        ]
    else:
        items = [_pretty(part, inner) for part in value]
    body = ",\n".join(inner + item for item in items)
    start, end = "{}" if isinstance(value, dict) else "[]"
    return f"{start}\n{body}\n{margin}{end}"


def _plain(entries: Entries) -> dict[str, dict[str, Any]]:
    return {
        key: {name: entry.to_json() for name, entry in named.items()}
        for key, named in entries.items()
        if named
    }


def _merged(entries: Entries, changes: Changes) -> dict[str, dict[str, Entry]]:
    found = {key: dict(named) for key, named in entries.items()}
    for key, named in changes.items():
        for name, entry in named.items():
            if entry is None:
                found.get(key, {}).pop(name, None)
            else:
                found.setdefault(key, {})[name] = entry
    return found


def _parse(path: Path, text: str) -> dict[str, dict[str, Entry]]:
    conflict = _CONFLICT.search(text)
    if conflict:
        line = text.count("\n", 0, conflict.start()) + 1
        raise BaselineError(
            f"{path}, line {line}: git left conflict markers; take the entries of one side, then "
            "write what your code measures with --qtune-update"
        )
    try:
        data = json.loads(text, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise BaselineError(f"{path} is no JSON: {error}; {_RESTORE}") from None
    schema = data.get("schema") if isinstance(data, dict) else None
    if not isinstance(schema, int) or isinstance(schema, bool):
        raise BaselineError(f"{path} is no file of baselines: it has no schema number; {_RESTORE}")
    if schema > SCHEMA:
        raise BaselineError(
            f"{path} was written by a newer qtune (schema {schema}, this one knows {SCHEMA}); "
            "update qtune"
        )
    try:
        return _entries(_mapping("entries", data.get("entries")), schema)
    except ValueError as error:
        raise BaselineError(f"{path} is damaged: {error}; {_RESTORE}") from None


def _entries(data: Mapping[str, Any], schema: int) -> dict[str, dict[str, Entry]]:
    found: dict[str, dict[str, Entry]] = {}
    for key, named in data.items():
        for name, entry in _mapping(key, named).items():
            try:
                read = Entry.from_json(entry)
            except ValueError as error:
                raise ValueError(f"{key}::{name}: {error}") from None
            if schema < SCHEMA:  # what its values mean may have changed
                read = replace(read, identity={**read.identity, "schema": str(schema)})
            found.setdefault(key, {})[name] = read
    return found


def _mapping(name: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{name} is an object, not {value!r}")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object; a careless merge leaves a key twice."""
    counts = Counter(key for key, _ in pairs)
    twice = [key for key, count in counts.items() if count > 1]
    if twice:
        raise ValueError(f"{twice[0]!r} is there twice")
    return dict(pairs)


def _check_values(
    name: str, data: Mapping[str, Any], kinds: tuple[type, ...], expected: str
) -> None:
    for key, value in data.items():
        if not isinstance(value, kinds) or isinstance(value, bool):
            raise ValueError(f"{name} holds {expected}, but {key} is {value!r}")


def _json_number(value: Any) -> Any:
    """NaN and infinities as texts; -0.0 and integers of any size are as Python writes them."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    return value


def _number(value: Any) -> Any:
    return _NOT_FINITE.get(value, value) if isinstance(value, str) else value


def _lock_path(path: Path) -> str:
    """A lock in the temporary folder: none must be left among the files of a repository."""
    digest = hashlib.sha256(str(path.resolve()).encode("utf-8", "surrogateescape")).hexdigest()
    return str(Path(tempfile.gettempdir()) / f"qtune-{_user()}-{digest[:16]}.lock")


def _user() -> str:
    try:
        return re.sub(r"\W", "_", getpass.getuser())
    except (KeyError, OSError, ImportError):  # a container without a name for its user
        return "nobody"


def changes_of(rows: Iterable[tuple[str, str, Entry | None]]) -> dict[str, dict[str, Entry | None]]:
    """``(key, name, entry)`` rows as ``write`` takes them."""
    found: dict[str, dict[str, Entry | None]] = {}
    for key, name, entry in rows:
        found.setdefault(key, {})[name] = entry
    return found


def in_ci() -> bool:
    """Whether the environment variable CI says that nobody is watching."""
    return os.environ.get("CI", "").lower() not in ("", "0", "false", "no")
