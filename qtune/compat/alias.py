"""Modules of the toolchain as views of qtune's, and the finder that gives them to ``import``."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Collection, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from qtune.compat.names import find, missing, names_of, nearest_in, target_of
from qtune.compat.roots import ROOTS, TOPS_LEFT_OUT, TORCH_ROOTS, Root


class AliasModule(ModuleType):
    """A module of the toolchain: every name is the object of qtune, looked up when asked for.

    What a script sets on it stays on it; qtune's own module is not changed.
    """

    _qtune_root: Root

    def __getattr__(self, name: str) -> Any:
        root = self.__dict__.get("_qtune_root")
        if root is None or (name.startswith("__") and name not in ("__all__", "__version__")):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        if name == "__all__":
            return list(names_of(root))
        if f"{root.alias}.{name}" in ROOTS:
            return importlib.import_module(f"{root.alias}.{name}")
        try:
            return find(root, name)
        except AttributeError:
            raise AttributeError(_lacks(root, name), name=name, obj=self) from None

    def __dir__(self) -> list[str]:
        return sorted({*self.__dict__, *names_of(self._qtune_root)})


def _lacks(root: Root, name: str) -> str:
    near = nearest_in(root.alias, name)
    hint = f"; nearest: {near}" if near else ""
    return f"qtune has no counterpart of {root.alias}.{name}{hint}"


class _AliasLoader:
    """Makes the view; the module of qtune is imported with it, so that its errors come here."""

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return AliasModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        root = ROOTS.get(module.__name__) or TORCH_ROOTS[module.__name__]
        target = target_of(root)
        module.__doc__ = f"{root.alias}, served by qtune: {target.__doc__}" if target else None
        module._qtune_root = root  # type: ignore[attr-defined]


class CompatFinder:
    """The entry in ``sys.meta_path``; it also keeps what ``uninstall`` takes back.

    ``served``: the top-level packages whose modules are views. ``adapt_torch``: called with torch
    once it is there, returns what undoes it.
    """

    def __init__(
        self, served: Collection[str], adapt_torch: Callable[[ModuleType], list[Callable[[], None]]]
    ) -> None:
        self.served = frozenset(served)
        self.undo: list[Callable[[], None]] = []
        self._adapt_torch = adapt_torch
        torch = sys.modules.get("torch")
        if torch is not None:  # None: somebody forbids its import
            self.undo += adapt_torch(torch)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The view of a served module; ``MissingNameError`` inside of a served package."""
        if name == "torch":
            return self._torch_spec(path)
        top = name.partition(".")[0]
        if top in self.served:
            return _alias_spec(name)
        if name not in TOPS_LEFT_OUT and name not in TORCH_ROOTS:
            return None
        if PathFinder.find_spec(name, path) is not None:
            return None  # torch has it, or it is installed
        return _alias_spec(name)

    def _torch_spec(self, path: Sequence[str] | None) -> ModuleSpec | None:
        """Torch's own spec, which adapts torch at the end of its import."""
        spec = PathFinder.find_spec("torch", path)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_and_adapt(module: ModuleType) -> None:
            execute(module)
            if self in sys.meta_path:
                self.undo += self._adapt_torch(module)

        spec.loader.exec_module = exec_and_adapt  # type: ignore[method-assign]
        return spec


def _alias_spec(name: str) -> ModuleSpec:
    if name not in ROOTS and name not in TORCH_ROOTS:
        raise missing(name)
    return ModuleSpec(name, _AliasLoader(), origin="qtune.compat", is_package=True)  # type: ignore[arg-type]


def forget_aliases() -> None:
    """Drop the views from ``sys.modules``; objects that a script took from them stay valid."""
    for name in [name for name, module in sys.modules.items() if isinstance(module, AliasModule)]:
        del sys.modules[name]
