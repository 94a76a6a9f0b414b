"""What a served module has, and what to say of a name that it lacks."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from difflib import get_close_matches
from types import ModuleType
from typing import Any

from qtune.compat.roots import LEFT_OUT, PAGE, ROOTS, TORCH_ROOTS, Root, children
from qtune.errors import MissingNameError


def target_of(root: Root) -> ModuleType | None:
    """The module of qtune behind a root, imported now; ``None`` for a mere package."""
    return importlib.import_module(root.target) if root.target else None


def find(root: Root, name: str) -> Any:
    """The object that ``name`` of a root stands for; ``AttributeError`` where qtune has none.

    Only public names count: what the module of qtune merely imports for itself is not served, nor
    are modules beyond the table.
    """
    target = target_of(root)
    if target is None or (root.only and name not in root.only):
        raise AttributeError(name)
    own = name in public_names(target)
    if not own and (name in vars(target) or not _is_like(root, name)):
        raise AttributeError(name)
    value = getattr(target, name)
    if isinstance(value, ModuleType):
        raise AttributeError(name)
    return value


def _is_like(root: Root, name: str) -> bool:
    return not root.like or hasattr(importlib.import_module(root.like), name)


def public_names(module: ModuleType) -> tuple[str, ...]:
    """``__all__``, or what the module defines itself or serves, without a leading underscore."""
    listed = getattr(module, "__all__", None)
    if listed is not None:
        return tuple(listed)
    defined = vars(module)
    own = [name for name, value in defined.items() if _is_own(module, name, value)]
    served = [name for name in dir(module) if name not in defined]
    return (*own, *served)


def _is_own(module: ModuleType, name: str, value: Any) -> bool:
    if name.startswith("_") or isinstance(value, ModuleType) or name == "annotations":
        return False
    defined_in = getattr(value, "__module__", None)
    is_code = isinstance(value, type) or callable(value)
    return not is_code or defined_in == module.__name__


def names_of(root: Root) -> tuple[str, ...]:
    """All that is served under a root, its modules first, what is made on demand last."""
    target = target_of(root)
    public = [*public_names(target), *_on_demand(root, target)] if target is not None else ()
    served = (name for name in public if not root.only or name in root.only)
    return tuple(dict.fromkeys([*children(root.alias), *served]))


def _on_demand(root: Root, target: ModuleType) -> Iterator[str]:
    made = (name for name in dir(target) if not name.startswith("_") and name not in vars(target))
    return (name for name in made if _is_like(root, name))


def missing(dotted: str) -> MissingNameError:
    """The error about a name of the toolchain that qtune lacks."""
    found, reason = nearest(dotted)
    hint = f". Nearest: {found}" if found else ", nor anything of a similar name"
    because = f" ({reason})" if reason else ""
    return MissingNameError(
        f"qtune.compat: qtune has no counterpart of {dotted}{hint}{because}. What the toolchain "
        f"has and qtune has not: {PAGE}; all names of a script: qtune compat-report SCRIPT",
        name=dotted,
    )


def nearest(dotted: str) -> tuple[str, str]:
    """What stands nearest to a missing name, and why it is missing (empty where unknown).

    A documented replacement first, then the same name in another module, then a similar one in
    the same module, then a similar one anywhere.
    """
    name = dotted.rpartition(".")[2]
    for key in (dotted, *_enclosing(dotted), name):
        if key in LEFT_OUT:
            return LEFT_OUT[key]
    elsewhere = [f"{root.alias}.{name}" for root in ROOTS.values() if name in names_of(root)]
    if elsewhere:
        return elsewhere[0], ""
    parent = dotted.rpartition(".")[0]
    near = nearest_in(parent, name) if parent in ROOTS else ""
    return near or _nearest_anywhere(name), ""


def nearest_in(alias: str, name: str) -> str:
    """The dotted name most like ``name`` in one served module; empty if none is alike."""
    names = names_of(ROOTS.get(alias) or TORCH_ROOTS[alias])
    same = [found for found in names if found.lower() == name.lower()]
    close = same or get_close_matches(name, names, n=1)
    return f"{alias}.{close[0]}" if close else ""


def _nearest_anywhere(name: str) -> str:
    places = {found: root.alias for root in ROOTS.values() for found in names_of(root)}
    close = get_close_matches(name, places, n=1, cutoff=0.75)
    return f"{places[close[0]]}.{close[0]}" if close else ""


def _enclosing(dotted: str) -> Iterator[str]:
    """``a.b`` and ``a`` of ``a.b.c``."""
    while "." in dotted:
        dotted = dotted.rpartition(".")[0]
        yield dotted
