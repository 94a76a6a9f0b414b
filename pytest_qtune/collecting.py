"""What the assertions of a test found, as plain values; what no file can hold fails the test.

Loaded by tests that use ``qtune.testing`` only.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from pytest_qtune.plain import plain_text, to_plain

_SCALARS = frozenset({type(None), bool, int, float, complex, bytes})
_CONTAINERS = frozenset({list, tuple, set, frozenset})
_SHOWN = 200
"""Characters that are kept of a property that can't be sent."""


def collect(item: pytest.Item, results: Iterable[Any], into: list[Any]) -> None:
    """Add the results of a phase to ``into``, and make the item's properties fit to be sent.

    Raises the first ``TypeError`` after all that can be kept was kept.
    """
    errors: list[TypeError] = []
    for result in results:
        try:
            into.append(to_plain(result.to_dict(), f"result of {item.nodeid}"))
        except TypeError as error:
            errors.append(error)
    _clean_properties(item, errors)
    if errors:
        raise errors[0]


def _clean_properties(item: pytest.Item, errors: list[TypeError]) -> None:
    """What ``record_property`` took: xdist can't send a NumPy scalar, and the session would die."""
    for index, pair in enumerate(item.user_properties):
        if _is_sendable(pair):
            continue
        name, value = plain_text(str(pair[0])), pair[1]
        try:
            plain = to_plain(value, f"property {name!r} of {item.nodeid}")
        except TypeError as error:
            errors.append(error)
            plain = plain_text(repr(value)[:_SHOWN])
        item.user_properties[index] = (name, plain)


def _is_sendable(value: Any) -> bool:
    """Whether xdist sends ``value`` as it is."""
    kind = type(value)
    if kind is str:
        return bool(value == plain_text(value))
    if kind is dict:
        return all(_is_sendable(k) and _is_sendable(v) for k, v in value.items())
    if kind in _CONTAINERS:
        return all(map(_is_sendable, value))
    return kind in _SCALARS
