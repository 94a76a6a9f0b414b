"""Names that are new."""

from __future__ import annotations

from collections.abc import Container


def unique_name(name: str, taken: Container[str]) -> str:
    """``name``, or ``name_1``, ``name_2`` and so on where it is ``taken``."""
    candidate, number = name, 1
    while candidate in taken:
        candidate = f"{name}_{number}"
        number += 1
    return candidate
