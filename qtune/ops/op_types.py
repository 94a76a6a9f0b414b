"""Whether an operator is of a type that the user names."""

from __future__ import annotations

from collections.abc import Sequence
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


def _operator(wanted: Any) -> str:
    found = find_module(wanted) if isinstance(wanted, type) else find_function(wanted)
    return "" if found is None else found[0].name


def _qualified(wanted: Any) -> str:
    return f"{wanted.__module__}.{getattr(wanted, '__qualname__', wanted.__name__)}"
