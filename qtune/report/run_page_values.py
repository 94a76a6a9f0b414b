"""Values of a run's data as text and as numbers; they may be the strings NaN and Infinity."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qtune.report.drawing import shortened

Entry = Mapping[str, Any]

NAME, TEXT, BLOCK = 400, 4_000, 12_000
"""Letters at most of a name (node ids have hundreds), of a paragraph, of a block of text."""


def check_entry(test: Entry, result: Entry, mark: str) -> dict[str, Any]:
    """A check with what its test says about it: id, how it ended, the command to repeat it."""
    more = {"test": test["nodeid"], "mark": mark, "rerun": test.get("rerun") or ""}
    return {**result, **more}


def number(value: Any) -> str:
    """A number in seven significant digits; ``""`` for ``None``, a string as it is.

    >>> number(0.123456789), number("NaN"), number(None)
    ('0.1234568', 'NaN', '')
    """
    if isinstance(value, int | float):
        return f"{value:.7g}"
    return "" if value is None else name(value)


def percent(share: Any) -> str:
    """A share (0 to 1) in percent.

    >>> percent(0.25), percent(None)
    ('25.00%', '')
    """
    return f"{share:.2%}" if isinstance(share, int | float) else ""


def as_float(value: Any) -> float:
    """The number behind ``NaN``, ``Infinity`` or a number; NaN for what is none.

    >>> as_float("-Infinity"), as_float(2)
    (-inf, 2.0)
    """
    try:
        return float(value)
    except (TypeError, ValueError):
        return float("nan")


def badness(layer: Entry) -> float:
    """How bad a layer is; NaN is the worst."""
    found = as_float(layer["badness"])
    return float("inf") if found != found else found


def name(value: Any) -> str:
    """A name, without its middle if it is very long."""
    return shortened(str(value), NAME)


def clipped(text: str, most: int = TEXT) -> str:
    """``text``, or its beginning and how much more there is."""
    if len(text) <= most:
        return text
    return f"{text[:most]}… ({len(text) - most} letters more; the JSON has all)"


def short_test(nodeid: str) -> str:
    """The part behind the file and the class."""
    return name(nodeid.rsplit("::", 1)[-1])
