"""The user's modules beside a gate file, imported without a trace for everything else.

Two gate files in two folders may each have a ``my_models.py``. What ``import`` finds without us
stays shared with the rest of the process, so that no module runs twice. What it finds only through
the folder of a gate file (or the root of the project) belongs to that folder: it is in
``sys.modules`` while one of its checks runs, and at no other time.
"""

from __future__ import annotations

import importlib.util
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType

_FOLDERS = [Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib")]
_INSTALLED = tuple({str(path) for path in (*_FOLDERS, *(f.resolve() for f in _FOLDERS))})
_OURS = frozenset({"qtune", "pytest_qtune"})


class Modules:
    """The modules of one folder. ``root``: where they are looked for after the folder."""

    def __init__(self, folder: Path, root: Path) -> None:
        self._paths = list(dict.fromkeys([str(folder), str(root)]))
        self._own: dict[str, ModuleType] = {}

    @contextmanager
    def active(self) -> Iterator[None]:
        """Within the block ``import`` finds what lies in the folder; restored after."""
        path = list(sys.path)
        aside = self._foreign()
        for name in aside:
            del sys.modules[name]
        aside |= {n: sys.modules[n] for n in self._own if n in sys.modules}
        before = set(sys.modules)
        sys.modules.update(self._own)
        sys.path[:0] = [p for p in self._paths if p not in path[:1]]
        importlib.invalidate_caches()
        try:
            yield
        finally:
            sys.path[:] = path
            self._keep(before)
            sys.modules.update(aside)

    def _foreign(self) -> dict[str, ModuleType]:
        """Modules of other places, under a name that the folder has too."""
        tops: dict[str, bool] = {}
        found = {}
        for name, module in list(sys.modules.items()):
            top = name.partition(".")[0]
            if top not in tops:
                tops[top] = self._is_foreign(top)
            if tops[top] and name not in self._own:
                found[name] = module
        return found

    def _is_foreign(self, top: str) -> bool:
        """Whether this folder has a module ``top`` and another one, not installed, is loaded."""
        loaded = sys.modules.get(top)
        file = _file_of(loaded)
        if file is None or top in _OURS or top == "__main__":
            return False
        here = PathFinder.find_spec(top, self._paths)
        origin = None if here is None else here.origin
        return origin is not None and str(Path(origin).resolve()) != file

    def _keep(self, before: set[str]) -> None:
        """Take what only this folder gave out of ``sys.modules``."""
        tops: dict[str, bool] = {}
        for name in [n for n in sys.modules if n not in before or n in self._own]:
            top = name.partition(".")[0]
            if top not in tops:
                tops[top] = name in self._own or self._is_ours_alone(top)
            if tops[top]:
                self._own[name] = sys.modules.pop(name)

    def _is_ours_alone(self, top: str) -> bool:
        """Whether ``import top`` would not find the loaded module without this folder."""
        file = _file_of(sys.modules.get(top))
        if file is None:
            return False
        if not any(Path(file).is_relative_to(Path(p).resolve()) for p in self._paths):
            return False
        try:
            spec = importlib.util.find_spec(top) if top not in sys.modules else _find(top)
        except (ImportError, ValueError):
            return True
        return spec != file


def _find(top: str) -> str | None:
    """The file that ``import top`` would load if nothing were loaded yet."""
    for finder in sys.meta_path:
        find = getattr(finder, "find_spec", None)
        spec = None if find is None else find(top, None)
        if spec is not None:
            return None if spec.origin is None else str(Path(spec.origin).resolve())
    return None


def _file_of(module: ModuleType | None) -> str | None:
    """The file of a module that is not installed."""
    file = getattr(module, "__file__", None)
    if file is None or file.startswith(_INSTALLED):
        return None
    resolved = str(Path(file).resolve())
    return None if resolved.startswith(_INSTALLED) else resolved
