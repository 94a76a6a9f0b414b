"""Whether an operator is of a type that the user names."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

from qtune.errors import ArgumentError
from qtune.ops.registry import find_function, find_module


def as_names(given: Any) -> tuple[str, ...] | None:
    """Names as a tuple; one name may be given alone. ``ArgumentError`` for anything else."""
    if given is None:
        return None
    names = _as_tuple(given)
    for name in names:
        if not isinstance(name, str):
            raise ArgumentError(f"a name (prefixes, output_names) is a text, got {name!r}")
    return names


def as_types(given: Any) -> tuple[Any, ...] | None:
    """Classes or functions as a tuple; one may be given alone. ``ArgumentError`` for others."""
    if given is None:
        return None
    types = _as_tuple(given)
    for wanted in types:
        if not callable(wanted):
            raise ArgumentError(f"types are classes or functions, got {wanted!r}")
    return types


def _as_tuple(given: Any) -> tuple[Any, ...]:
    return tuple(given) if isinstance(given, list | tuple | set | frozenset) else (given,)


def is_one_of(types: Sequence[Any], op: str, *names: str) -> bool:
    """Whether one of ``types`` means the operator ``op`` of the registry, or is called as it is.

    A type is a class or a function: the float model's own, torch's of the same operator, or the
    class in ``qtune.nn.qat``. ``names``: the qualified names under which the operator is known.
    """
    return any(_qualified(wanted) in names or _operator(wanted) == op != "" for wanted in types)


def nothing_fits(
    where: str, names: Sequence[str], prefixes: Sequence[str] | None, types: Sequence[Any] | None
) -> str:
    """What to say of a choice that leaves none of the operators ``names``."""
    asked = [f"prefixes {tuple(prefixes)}"] if prefixes else []
    if types is not None:
        asked.append(f"types {tuple(getattr(t, '__name__', t) for t in types)}")
    near = {name for prefix in prefixes or () for name in nearest(prefix, names)}
    return (
        f"{where}: no operator fits {' and '.join(asked)}; the model has, for example: "
        f"{', '.join(sorted(near) or names[:5])}"
    )


def nearest(prefix: str, names: Sequence[str]) -> list[str]:
    """Names, or paths that they begin with, that were perhaps meant by ``prefix``; at most 3."""
    parts = [name.split(".") for name in names]
    paths = (".".join(p[:depth]) for p in parts for depth in range(1, len(p) + 1))
    return get_close_matches(prefix, list(dict.fromkeys(paths)), n=3, cutoff=0.5)


def _operator(wanted: Any) -> str:
    found = find_module(wanted) if isinstance(wanted, type) else find_function(wanted)
    return "" if found is None else found[0].name


def _qualified(wanted: Any) -> str:
    return f"{wanted.__module__}.{getattr(wanted, '__qualname__', wanted.__name__)}"
