"""``install`` and ``uninstall``: the toolchain's names in this process and in those it starts."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import TracebackType

from qtune.compat.alias import AliasModule, CompatFinder, forget_aliases
from qtune.compat.devices import adapt_torch
from qtune.compat.roots import ROOTS, TOPS
from qtune.errors import ArgumentError

PREFER = "QTUNE_COMPAT_PREFER"
"""Environment variable: who wins where a real toolchain is installed."""
CHOICES = ("qtune", "installed")
ACTIVE = "QTUNE_COMPAT"
"""Environment variable: set while the aliases are installed, for child processes to do the same."""
_PATH = "PYTHONPATH"
_CHILD = Path(__file__).parent / "child"
"""Holds the ``sitecustomize`` of child processes."""

_log = logging.getLogger(__name__)


class Installation:
    """What one call of ``install`` did; as a context manager it ends with the block.

    Only the call that installed takes back: an inner ``with install():`` ends nothing.
    """

    def __init__(self, is_first: bool) -> None:
        self.is_first = is_first

    def close(self) -> None:
        """Take back what this call installed."""
        if self.is_first:
            uninstall()

    def __enter__(self) -> Installation:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def install(prefer: str | None = None) -> Installation:
    """Serve the toolchain's modules by qtune's, until ``uninstall`` or the end of a ``with`` block.

    Processes that this one starts (spawn, torchrun, subprocess) serve them, too: the environment
    variables QTUNE_COMPAT and PYTHONPATH tell them. A second call does nothing.

    ``prefer``: who wins where a package of the real toolchain is installed, "qtune" (with a log
    line that names it) or "installed" (qtune serves the other packages only); default: the
    environment variable QTUNE_COMPAT_PREFER, else "qtune".

    Raises ``ArgumentError`` for another ``prefer``, and where a real package that qtune shall stand
    for is imported already.
    """
    if finder() is not None:
        return Installation(is_first=False)
    chosen = prefer or os.environ.get(PREFER) or CHOICES[0]
    if chosen not in CHOICES:
        source = "prefer" if prefer else PREFER
        raise ArgumentError(f"qtune.compat: {source} is {chosen!r}; give one of: {CHOICES}")
    real = {top: where for top in TOPS if (where := installed_at(top))}
    imported = _imported()
    if chosen == "qtune":
        _refuse(imported)
        _say_shadowed(real)
    served = [top for top in TOPS if chosen == "qtune" or not (top in real or top in imported)]
    sys.meta_path.insert(0, CompatFinder(served, adapt_torch))
    _tell_children(chosen)
    return Installation(is_first=True)


def uninstall() -> None:
    """Take all back: the finder, the modules, what changed in torch, the environment."""
    found = finder()
    if found is None:
        return
    sys.meta_path.remove(found)
    forget_aliases()
    for undo in reversed(found.undo):
        undo()
    _tell_children_no_more()


def finder() -> CompatFinder | None:
    """The installed finder, if any."""
    return next((entry for entry in sys.meta_path if isinstance(entry, CompatFinder)), None)


def installed_at(top: str) -> str:
    """Where the real package lies on this machine; empty if it is not installed.

    A folder without code counts only if it holds one of the modules that qtune serves.
    """
    spec = PathFinder.find_spec(top)
    if spec is None:
        return ""
    if spec.origin is not None:
        return str(spec.origin)
    inside = [name for name in ROOTS if name.startswith(f"{top}.") and name.count(".") == 1]
    return next((str(s.origin) for name in inside if (s := _inside(spec, name)) is not None), "")


def _inside(package: ModuleSpec, name: str) -> ModuleSpec | None:
    spec = PathFinder.find_spec(name, package.submodule_search_locations)
    return spec if spec is not None and spec.origin is not None else None


def _imported() -> dict[str, str]:
    """The real packages that this process has imported, and from where."""
    modules = {top: sys.modules[top] for top in TOPS if sys.modules.get(top) is not None}
    return {
        top: getattr(module, "__file__", None) or "an unknown place"
        for top, module in modules.items()
        if not isinstance(module, AliasModule)
    }


def _refuse(imported: Mapping[str, str]) -> None:
    for top, where in imported.items():
        raise ArgumentError(
            f"qtune.compat: {top} is imported already, from {where}. Call install() before its "
            f"first import, or install(prefer='installed') to go on with it"
        )


def _say_shadowed(real: Mapping[str, str]) -> None:
    if real and ACTIVE not in os.environ:  # a child process: its parent has said so
        names = ", ".join(f"{top} ({where})" for top, where in real.items())
        _log.warning(
            "qtune.compat: qtune stands for the installed %s; to use what is installed, set "
            "%s=installed, or give --prefer installed or install(prefer='installed')",
            names,
            PREFER,
        )


def _tell_children(prefer: str) -> None:
    """Variables that the interpreters of child processes read at their start."""
    os.environ[ACTIVE] = prefer
    folders = _folders()
    if str(_CHILD) not in folders:
        os.environ[_PATH] = os.pathsep.join([str(_CHILD), *folders])


def _tell_children_no_more() -> None:
    os.environ.pop(ACTIVE, None)
    folders = _folders()
    rest = [entry for entry in folders if entry != str(_CHILD)]
    if rest:
        os.environ[_PATH] = os.pathsep.join(rest)
    elif folders:
        del os.environ[_PATH]


def _folders() -> list[str]:
    """The entries of PYTHONPATH; an empty one among them is the working directory."""
    value = os.environ.get(_PATH)
    return value.split(os.pathsep) if value else []
