"""One form of error for names that don't exist, with close matches."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from difflib import get_close_matches
from typing import Any

from qtune.errors import ArgumentError, kind_of


def unknown(where: str, what: str, got: object, known: Collection[str]) -> ArgumentError:
    """The error for ``got``, which is no ``what`` at ``where``."""
    near = get_close_matches(str(got), list(known), n=3)
    listed = sorted(known)
    more = f" and {len(listed) - 8} more" if len(listed) > 8 and not near else ""
    hint = f"close matches: {', '.join(near)}" if near else f"known: {', '.join(listed[:8])}{more}"
    return ArgumentError(f"{where}: no {what} {got!r}; {hint}")


def check_keys(
    where: str, given: Any, known: Collection[str], what: str = "key"
) -> Mapping[str, Any]:
    """``given`` as a mapping with known keys only."""
    if not isinstance(given, Mapping):
        raise ArgumentError(f"{where}: expected a dict but got {kind_of(given)} ({given!r})")
    for key in given:
        if key not in known:
            raise unknown(where, what, key, known)
    return given


def one_of(where: str, got: object, known: Collection[str]) -> str:
    """``got`` if it is one of the texts ``known``."""
    if not isinstance(got, str) or got not in known:
        raise ArgumentError(f"{where}: expected one of {', '.join(known)}, got {got!r}")
    return got


def section(where: str, given: Any, known: Collection[str] | None = None) -> Mapping[str, Any]:
    """A level of a configuration, which may be left empty; ``None`` for ``known``: any keys."""
    return {} if given is None else check_keys(where, given, given if known is None else known)


def flag(where: str, given: Any) -> bool:
    """``given`` if it is True or False."""
    if not isinstance(given, bool):
        raise ArgumentError(f"{where}: expected True or False, got {given!r}")
    return given
