"""The one way in which values cross a process boundary (worker to controller, run to file)."""

from __future__ import annotations

import dataclasses
import enum
import math
import os
from typing import Any

Plain = None | bool | int | float | str | list[Any] | dict[str, Any]


def to_plain(value: Any, where: str = "value") -> Plain:
    """Map ``value`` to None, bool, int, float, str, list and dict with str keys.

    Knows NumPy and torch scalars and arrays of one element, enums, paths, dataclasses, sets.
    NaN and inf stay floats. Anything else is a ``TypeError`` naming the place.

    >>> to_plain({"a": (1, {2})})
    {'a': [1, [2]]}
    """
    if value is None or type(value) in (bool, int, float):
        plain: Plain = value
        return plain
    if type(value) is str:
        return plain_text(value)
    if isinstance(value, enum.Enum):
        return to_plain(value.value if isinstance(value.value, str | int | float) else value.name)
    if isinstance(value, os.PathLike):
        return plain_text(os.fsdecode(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: to_plain(getattr(value, field.name), f"{where}.{field.name}")
            for field in dataclasses.fields(value)
        }
    return _containers(value, where)


def _containers(value: Any, where: str) -> Plain:
    if hasattr(value, "items"):
        return {plain_text(str(k)): to_plain(v, f"{where}[{k!r}]") for k, v in value.items()}
    if isinstance(value, set | frozenset):
        return [to_plain(v, where) for v in sorted(value, key=repr)]
    if isinstance(value, list | tuple):
        return [to_plain(v, f"{where}[{i}]") for i, v in enumerate(value)]
    if isinstance(value, int | float | str):  # subclasses: numpy.float64, str enums
        if isinstance(value, str):
            return plain_text(str(value))
        return int(value) if isinstance(value, int) else float(value)
    size = getattr(value, "numel", None) or getattr(value, "size", None)
    count = size() if callable(size) else size
    if count == 1 and callable(getattr(value, "item", None)):  # NumPy and torch scalars
        return to_plain(value.item(), where)
    raise TypeError(
        f"qtune: {where} is a {type(value).__module__}.{type(value).__qualname__}, which can't be "
        "sent to the controller or written to a report; pass a number, a string, or a container "
        "of these"
    )


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
