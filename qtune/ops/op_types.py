"""Whether an operator is of a type that the user names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qtune.ops.registry import find_function, find_module


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
