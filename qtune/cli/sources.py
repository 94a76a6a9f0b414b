"""``module:attribute`` and ``path/to/file.py:attribute``: the user's own objects."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from qtune.cli.failure import one_line
from qtune.cli.outcome import InputError

_MOST_NAMES = 8


def load_object(spec: str, option: str, example: str = "nets.py:make") -> Any:
    """The object that ``spec`` names; ``option`` is what it was given for, for messages.

    Modules are looked for in the current directory, then among the installed ones. Raises
    ``InputError`` where there is no such module, file or attribute, or importing it fails.
    """
    where, separator, name = spec.rpartition(":")
    if not separator or not where or not name:
        raise InputError(
            f"{option}: expected module:name or path/to/file.py:name, such as {example}, but got "
            f"{spec!r}"
        )
    found: Any = _module(where, option)
    for part in name.split("."):
        if not hasattr(found, part):
            raise InputError(f"{option}: {where} has no {part!r}; {_names_near(part, found)}")
        found = getattr(found, part)
    return found


def called(value: Any, spec: str, option: str) -> Any:
    """What the callable ``value`` returns; ``InputError`` naming the line where it raised."""
    try:
        return value()
    except Exception as error:
        raise InputError(f"{option}: {spec} raised {one_line(error)}") from error


def _module(where: str, option: str) -> ModuleType:
    importlib.invalidate_caches()  # the file may be new
    try:
        if where.endswith(".py"):
            return _file(Path(where), option)
        return importlib.import_module(where)
    except InputError:
        raise
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and _is_part(error.name, where):
            raise InputError(
                f"{option}: no module {error.name!r}, neither in {Path.cwd()} nor installed"
            ) from error
        raise InputError(f"{option}: importing {where} raised {one_line(error)}") from error


def _is_part(missing: str | None, where: str) -> bool:
    """Whether the module that is missing is the one asked for, not one that it imports."""
    return missing is not None and f"{where}.".startswith(f"{missing}.")


def _file(path: Path, option: str) -> ModuleType:
    """The module of a file, once per process; what lies beside it can be imported from it."""
    if not path.is_file():
        raise InputError(f"{option}: there is no file {path}")
    file = path.resolve()
    name = _free_name(file)
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise InputError(f"{option}: {path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(file.parent))
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _free_name(file: Path) -> str:
    """The file's stem, or another name where the stem would import another file."""
    stem, own = file.stem, f"{file.stem}@{file}"
    if own in sys.modules:
        return own
    try:
        known = importlib.util.find_spec(stem) if stem.isidentifier() else None
    except ValueError:  # a module without a spec, such as __main__
        known = None
    origin = None if known is None else known.origin
    is_free = origin is None or Path(origin).resolve() == file
    return stem if is_free and stem not in sys.builtin_module_names else own


def _is_imported(value: Any, owner: Any) -> bool:
    return getattr(value, "__module__", None) != getattr(owner, "__name__", "")


def _names_near(name: str, owner: Any) -> str:
    found = vars(owner).items() if hasattr(owner, "__dict__") else ()
    public = {n: value for n, value in found if not n.startswith("_")}
    names = sorted(public, key=lambda n: _is_imported(public[n], owner))  # its own first
    near = difflib.get_close_matches(name, names, n=1)
    if near:
        return f"did you mean {near[0]!r}?"
    listed = ", ".join(names[:_MOST_NAMES]) + (", ..." if len(names) > _MOST_NAMES else "")
    return f"it has: {listed or 'nothing'}"
