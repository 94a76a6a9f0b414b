"""Fuzzing: calls of operators, the properties they must have, and what a failure looks like.

``OperatorCall`` and ``full`` are what a printed snippet imports. Only the search for an example
needs the package hypothesis.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    "OperatorCall": "call",
    "Line": "line",
    "Difference": "difference",
    "TableCall": "table",
    "compare": "decorator",
    "first_difference": "difference",
    "full": "literals",
    "fuzz": "decorator",
    "fuzz_operator": "operator",
}
__all__ = list(_HOMES)  # noqa: PLE0605 - derived from the table above


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
