"""``module:attribute`` and ``path/to/file.py:attribute``: the user's own objects.

Loads no torch: what a file or a command line names is checked before anything heavy is imported.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from qtune.errors import ArgumentError, QtuneError
from qtune.testing.failure import one_line

_MOST_NAMES = 8


def load_object(
    spec: str,
    option: str,
    example: str = "nets.py:make",
    *,
    error: type[QtuneError] = ArgumentError,
    folder: Path | None = None,
) -> Any:
    """The object that ``spec`` names; ``option`` is what it was given for, for messages.

    Modules are looked for as ``import`` does, files from ``folder`` (default: the current
    directory). Raises ``error`` where there is no such module, file or attribute, or importing it
    fails.
    """
    where, separator, name = spec.rpartition(":")
    if not separator or not where or not name:
        raise error(
            f"{option}: expected module:name or path/to/file.py:name, such as {example}, but got "
            f"{spec!r}"
        )
    found: Any = _module(where, option, error, folder or Path.cwd())
    for part in name.split("."):
        if not hasattr(found, part):
            raise error(f"{option}: {where} has no {part!r}; {_names_near(part, found)}")
        found = getattr(found, part)
    return found


def called(value: Any, spec: str, option: str, *, error: type[QtuneError] = ArgumentError) -> Any:
    """What the callable ``value`` returns; ``error`` naming the line where it raised."""
    try:
        return value()
    except (Exception, SystemExit) as reason:  # a script that reads its command line exits
        raise error(f"{option}: {spec} raised {one_line(reason)}") from reason


def load_setter(
    spec: str,
    option: str,
    *,
    error: type[QtuneError] = ArgumentError,
    folder: Path | None = None,
) -> Any:
    """The qconfig setter that ``spec`` names; a callable that makes one is called."""
    from qtune.qconfig.qconfig import QConfig

    given = load_object(spec, option, error=error, folder=folder)
    if callable(given) and not isinstance(given, QConfig) and not hasattr(given, "settings"):
        return called(given, spec, option, error=error)
    return given


def _module(where: str, option: str, error: type[QtuneError], folder: Path) -> ModuleType:
    importlib.invalidate_caches()  # the file may be new
    try:
        if where.endswith(".py"):
            return _file(folder / where, where, option, error)
        return importlib.import_module(where)
    except error:
        raise
    except (Exception, SystemExit) as reason:
        if isinstance(reason, ModuleNotFoundError) and _is_part(reason.name, where):
            raise error(
                f"{option}: no module {reason.name!r}, neither in {folder} nor installed"
            ) from reason
        raise error(f"{option}: importing {where} raised {one_line(reason)}") from reason


def _is_part(missing: str | None, where: str) -> bool:
    """Whether the module that is missing is the one asked for, not one that it imports."""
    return missing is not None and f"{where}.".startswith(f"{missing}.")


def _file(path: Path, written: str, option: str, error: type[QtuneError]) -> ModuleType:
    """The module of a file, once per process; what lies beside it can be imported from it."""
    if not path.is_file():
        raise error(f"{option}: there is no file {written}")
    file = path.resolve()
    name = _free_name(file)
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise error(f"{option}: {written} is no Python file")
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
