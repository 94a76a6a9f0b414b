"""Values written as TOML; the standard library only reads it."""

from __future__ import annotations

import json


def assignment(key: str, value: object) -> str:
    """``key = value`` on one line. ``value``: a text, number, bool, or a list of these.

    >>> assignment("march", "nash-e"), assignment("slow", True), assignment("allowed", ["a", "b"])
    ('march = "nash-e"', 'slow = true', 'allowed = ["a", "b"]')
    """
    return f"{key} = {_value(value)}"


def _value(value: object) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, str):  # JSON's escapes are TOML's
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    raise TypeError(f"no TOML for {value!r}")
