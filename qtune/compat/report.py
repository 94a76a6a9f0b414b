"""Which names of the toolchain a script uses, and which qtune has; the script is not run."""

from __future__ import annotations

import ast
import importlib
import os
import tokenize
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from enum import EnumType
from pathlib import Path
from typing import Any

from qtune.compat.bindings import Place, uses
from qtune.compat.names import find, names_of, nearest
from qtune.compat.roots import ROOTS, TORCH_ROOTS, Root
from qtune.compat.script import refuse_notebook
from qtune.errors import ArgumentError


@dataclass(frozen=True, slots=True)
class NameUse:
    """One toolchain name. ``counterpart``: what stands for it, empty where nothing does.

    ``nearest``, ``reason``: for a missing name, what to use instead and why. ``places``: file and
    line of each use.
    """

    name: str
    counterpart: str
    nearest: str
    reason: str
    places: tuple[tuple[str, int], ...]

    def __bool__(self) -> bool:
        return bool(self.counterpart)

    def to_dict(self) -> dict[str, Any]:
        """Plain containers."""
        return {
            "name": self.name,
            "exists": bool(self),
            "counterpart": self.counterpart or None,
            "nearest": self.nearest or None,
            "reason": self.reason or None,
            "places": [{"file": file, "line": line} for file, line in self.places],
        }


@dataclass(frozen=True, slots=True)
class CompatReport:
    """All names of some scripts, by name; true if qtune has every one."""

    files: tuple[str, ...]
    names: tuple[NameUse, ...]

    def __bool__(self) -> bool:
        return all(self.names)

    @property
    def missing(self) -> tuple[NameUse, ...]:
        """The names that qtune lacks."""
        return tuple(use for use in self.names if not use)


def compat_report(paths: Sequence[str | Path]) -> CompatReport:
    """Read scripts and look up every toolchain name in them.

    Names are followed from imports through attributes to modules, and to members of enums and
    classes (``March.NASH_E``). A folder stands for all ``.py`` files in it and below. Raises
    ``ArgumentError`` for a file that can't be read or parsed, a notebook, and a folder without a
    script.
    """
    places: dict[str, list[tuple[str, int]]] = {}
    files = [file for path in paths for file in _scripts(Path(path))]
    for path in files:
        for place in uses(_tree(path), _star_names):
            where = (str(path), place.line)
            known = places.setdefault(_whole_name(place), [])
            if where not in known:
                known.append(where)
    names = tuple(_look_up(name, tuple(where)) for name, where in sorted(places.items()))
    return CompatReport(tuple(map(str, files)), names)


def _scripts(path: Path) -> list[Path]:
    """The file, or those of a folder; hidden folders and virtual environments hold none of it."""
    if not path.is_dir():
        return [path]
    found: list[Path] = []
    for folder, inside, files in os.walk(path):
        is_environment = "pyvenv.cfg" in files
        inside[:] = sorted(n for n in inside if not (is_environment or n.startswith(".")))
        found += [Path(folder, name) for name in sorted(files) if name.endswith(".py")]
    if not found:
        raise ArgumentError(f"there is no script (*.py) in the folder {path}")
    return found


def _tree(path: Path) -> ast.Module:
    refuse_notebook(path)
    try:
        with tokenize.open(path) as file:
            return ast.parse(file.read(), str(path))
    except (OSError, SyntaxError, UnicodeDecodeError) as error:
        raise ArgumentError(f"can't read {path} as a script: {error}") from None


def _star_names(module: str) -> tuple[str, ...]:
    return names_of(ROOTS[module]) if module in ROOTS else ()


def _whole_name(place: Place) -> str:
    """The part of a chain that names something: attributes of objects are left off."""
    if place.is_import:
        return place.name
    return _resolve(place.name)[0]


def _look_up(name: str, places: tuple[tuple[str, int], ...]) -> NameUse:
    counterpart = _resolve(name)[1]
    found, reason = ("", "") if counterpart else _replacement(name)
    return NameUse(name, counterpart, found, reason, places)


def _resolve(dotted: str) -> tuple[str, str]:
    """The part of a chain that was looked up, and its counterpart (empty: there is none)."""
    for root in TORCH_ROOTS.values():
        if dotted.startswith(f"{root.alias}."):
            return dotted, _of_torch(root, dotted)
    alias = _deepest_root(dotted)
    if not alias:
        return dotted, ""
    root = ROOTS[alias]
    rest = dotted.removeprefix(alias).lstrip(".").split(".") if dotted != alias else []
    if not rest:
        return alias, root.target or "(package)"
    try:
        value = find(root, rest[0])
    except AttributeError:
        return f"{alias}.{rest[0]}", ""
    return _member(f"{alias}.{rest[0]}", f"{root.target}.{rest[0]}", value, rest[1:])


def _member(name: str, counterpart: str, value: Any, rest: Sequence[str]) -> tuple[str, str]:
    """One step into a class, whose members are known; an object's own attributes are not."""
    if not rest or not isinstance(value, type):
        return name, counterpart
    exists = rest[0] in _members(value) or hasattr(object, rest[0])
    if not exists and hasattr(type(value), "__getattr__") and not isinstance(value, EnumType):
        return name, counterpart  # what is asked for is registered at run time, as in Metric.loss
    return f"{name}.{rest[0]}", f"{counterpart}.{rest[0]}" if exists else ""


def _deepest_root(dotted: str) -> str:
    parts = dotted.split(".")
    whole = (".".join(parts[:end]) for end in range(len(parts), 0, -1))
    return next((name for name in whole if name in ROOTS), "")


def _of_torch(root: Root, dotted: str) -> str:
    name = dotted.rpartition(".")[2]
    module = importlib.import_module(root.alias)
    return dotted if hasattr(module, name) else f"{root.target}.{name}"


def _replacement(name: str) -> tuple[str, str]:
    """For a member of a class the nearest member, else that of the module."""
    owner, _, last = name.rpartition(".")
    value = _class_of(owner)
    if value is None:
        return nearest(name)
    members = _members(value)
    close = get_close_matches(last, members, n=1)
    return (f"{owner}.{close[0]}", "") if close else (f"one of {', '.join(members)}", "")


def _members(value: type) -> list[str]:
    """Public members of a class; of an enum its values under all their names, and its functions."""
    names = [*value.__members__, *vars(value)] if isinstance(value, EnumType) else dir(value)
    return [name for name in names if not name.startswith("_")]


def _class_of(dotted: str) -> type | None:
    parent, _, name = dotted.rpartition(".")
    if parent not in ROOTS or dotted in ROOTS:
        return None
    try:
        value = find(ROOTS[parent], name)
    except AttributeError:
        return None
    return value if isinstance(value, type) else None


def lines_of(places: Iterable[tuple[str, int]], several: bool) -> str:
    """Where a name is used, short: lines, with the file where there are several."""
    return ", ".join(f"{file}:{line}" if several else str(line) for file, line in places)
