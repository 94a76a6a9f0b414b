"""The one way in which values cross a process boundary (worker to controller, run to file)."""

from __future__ import annotations

import dataclasses
import enum
import math
import os
from collections.abc import Mapping
from datetime import date, time
from typing import Any

Plain = None | bool | int | float | str | list[Any] | dict[str, Any]


def to_plain(value: Any, where: str = "value") -> Plain:
    """Map ``value`` to None, bool, int, float, str, list and dict with str keys.

    Knows NumPy and torch scalars and arrays of one element, enums, paths, dataclasses, sets, dates.
    NaN and inf stay floats; the keys of a dict become texts. Anything else is a ``TypeError``
    naming the place: arrays of several elements, bytes, complex numbers, keys that become the same
    text, integers beyond float64's range, what holds itself.

    >>> to_plain({"a": (1, {2})})
    {'a': [1, [2]]}
    """
    try:
        return _plain(value, where)
    except RecursionError:
        raise TypeError(f"qtune: {where} is nested too deep, or holds itself") from None


def _plain(value: Any, where: str) -> Plain:
    if value is None or type(value) in (bool, float):
        plain: Plain = value
        return plain
    if type(value) is int:
        return _integer(value, where)
    if type(value) is str:
        return plain_text(value)
    if isinstance(value, enum.Enum):
        plain = value.value if isinstance(value.value, str | int | float) else value.name
        return _plain(plain, where)
    if isinstance(value, os.PathLike):
        return plain_text(os.fsdecode(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: _plain(getattr(value, field.name), f"{where}.{field.name}")
            for field in dataclasses.fields(value)
        }
    return _containers(value, where)


def _containers(value: Any, where: str) -> Plain:
    if isinstance(value, Mapping):
        return _mapping(value, where)
    if isinstance(value, set | frozenset):
        return [_plain(v, where) for v in sorted(value, key=repr)]
    if isinstance(value, list | tuple):
        return [_plain(v, f"{where}[{i}]") for i, v in enumerate(value)]
    if isinstance(value, int | float | str):  # subclasses: numpy.float64, str enums
        if isinstance(value, str):
            return plain_text(str(value))
        return _integer(int(value), where) if isinstance(value, int) else float(value)
    if isinstance(value, date | time):
        return value.isoformat()
    return _single(value, where)


def _mapping(value: Mapping[Any, Any], where: str) -> Plain:
    """A dict with texts as keys; two keys must not become one."""
    found: dict[str, Any] = {}
    for key, item in value.items():
        text = plain_text(str(_plain(key, where) if isinstance(key, enum.Enum) else key))
        if text in found:
            raise TypeError(f"qtune: {where} has two keys that are both {text!r} as text")
        found[text] = _plain(item, f"{where}[{key!r}]")
    return found


def _single(value: Any, where: str) -> Plain:
    """NumPy and torch scalars, and arrays of one element."""
    size = getattr(value, "numel", None) or getattr(value, "size", None)
    count = size() if callable(size) and not isinstance(value, type) else size
    kind = str(getattr(value, "dtype", ""))
    if count == 1 and kind.startswith("datetime64"):  # item() may be an int without a unit
        return str(value.reshape(-1)[0])
    if count == 1 and callable(getattr(value, "item", None)) and not kind.startswith("timedelta"):
        try:
            element = value.item()
        except Exception as error:  # a tensor on the device meta has none
            raise _refused(value, where) from error
        return _plain(element, where)
    raise _refused(value, where)


def _refused(value: Any, where: str) -> TypeError:
    return TypeError(
        f"qtune: {where} is a {type(value).__module__}.{type(value).__qualname__}, which can't be "
        "sent to the controller or written to a report; pass a number, a string, or a container "
        "of these"
    )


def _integer(value: int, where: str) -> int:
    """Python can't even print an integer of some thousand digits."""
    try:
        float(value)
    except OverflowError:
        bits = value.bit_length()
        raise TypeError(f"qtune: {where} is an integer of {bits} bits; pass a float") from None
    return value


def plain_text(text: str) -> str:
    """``text`` without lone surrogates (undecodable bytes of a path), which no file can hold."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def json_ready(value: Plain) -> Plain:
    """Replace NaN and infinities, which JSON can't hold, by the strings ``NaN``, ``Infinity``."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if isinstance(value, list):
        return [json_ready(v) for v in value]
    if isinstance(value, dict):
        return {k: json_ready(v) for k, v in value.items()}
    return value
