"""Which operators or ports an argument of an assertion names.

A name is an operator's own, that of a module around it (``layer1`` is all of ``layer1.*``), a glob
(``layer1.*.conv``), or ``""`` for all of them. A port is ``<operator> output``, ``<operator>
weight``, ``<operator> input`` (every operand) or ``<operator> input-1``, as reports call it.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any, TypeVar

from qtune.errors import ArgumentError

V = TypeVar("V")
Port = tuple[str, str]
"""Operator and kind: ``output``, ``weight``, ``input-0``, ..."""

_INPUT = "input"
_KINDS = ("output", "weight", _INPUT)
_MOST_CLOSE = 3


def fits(pattern: str, name: str) -> bool:
    """Whether ``pattern`` names the operator ``name``."""
    return pattern in ("", name) or name.startswith(f"{pattern}.") or fnmatchcase(name, pattern)


def patterns_of(check: str, argument: str, given: Any) -> list[str]:
    """Names as a list; a single one may come as it is."""
    if isinstance(given, str):
        return [given]
    if isinstance(given, Iterable) and not hasattr(given, "dtype"):
        names = list(given)
        if all(isinstance(item, str) for item in names):
            return names
    raise ArgumentError(f"{check}: {argument} must be names of operators but got {given!r}")


def operators_of(check: str, argument: str, pattern: str, names: Sequence[str]) -> list[str]:
    """The operators among ``names`` that ``pattern`` names; ``ArgumentError`` if there is none."""
    found = [name for name in names if fits(pattern, name)]
    if found:
        return found
    close = get_close_matches(pattern, names, n=_MOST_CLOSE)
    hint = f"; close: {', '.join(close)}" if close else f"; the first are: {_few(names)}"
    raise ArgumentError(f"{check}: {argument}: no operator is called {pattern!r}{hint}")


def ports_of(
    check: str,
    argument: str,
    pattern: str,
    ports: Sequence[Port],
    default: str = "",
    by_name: Container[Port] = (),
) -> list[Port]:
    """The (operator, kind) among ``ports`` that ``pattern`` names, at least one.

    ``default``: the kind where ``pattern`` names none; ``""``: every kind. ``by_name``: ports that
    only the exact name of their operator means.
    """
    name, kind = _split(pattern)
    names = list(dict.fromkeys(op for op, _ in ports))
    if not kind and not any(fits(name, own) for own in names):
        name, kind = _mistyped_port(name, names)
    kind = kind or default
    chosen = set(operators_of(check, argument, name, names))
    found = [
        port
        for port in ports
        if port[0] in chosen
        and _is_kind(kind, port[1])
        and (port[0] == name or port not in by_name)
    ]
    if found:
        return found
    there = [f"{op} {own}" for op, own in ports if op in chosen]
    raise ArgumentError(
        f"{check}: {argument}: {name!r} has no port {kind!r}; there is: {_few(there)}"
    )


def by_port(
    check: str,
    argument: str,
    given: Mapping[str, V],
    ports: Sequence[Port],
    default: str = "",
    by_name: Container[Port] = (),
) -> dict[Port, V]:
    """What a table by pattern says about each port that it names; the later entry wins.

    In the order of ``ports``; the other arguments as for :func:`ports_of`.
    """
    if not isinstance(given, Mapping) or not all(isinstance(key, str) for key in given):
        raise ArgumentError(
            f"{check}: {argument} must be a table by name, such as {{'head output': ...}}, but got "
            f"{given!r}"
        )
    said = {
        port: value
        for pattern, value in given.items()
        for port in ports_of(check, argument, pattern, ports, default, by_name)
    }
    return {port: said[port] for port in ports if port in said}


def _split(pattern: str) -> tuple[str, str]:
    """``head output`` as name and kind; the kind is empty where there is none."""
    name, space, kind = pattern.rpartition(" ")
    is_kind = kind in _KINDS or kind.startswith(f"{_INPUT}-")
    return (name, kind) if space and is_kind else (pattern, "")


def _mistyped_port(pattern: str, names: Sequence[str]) -> tuple[str, str]:
    """``head weigth`` as name and a kind that no port has, if ``head`` names an operator."""
    name, _, kind = pattern.rpartition(" ")
    return (name, kind) if name and any(fits(name, own) for own in names) else (pattern, "")


def _is_kind(wanted: str, kind: str) -> bool:
    return wanted in ("", kind) or (wanted == _INPUT and kind.startswith(f"{_INPUT}-"))


def _few(names: Sequence[str]) -> str:
    most = 5
    more = f", and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
