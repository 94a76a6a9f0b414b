"""Fuzzing: calls of operators, the properties they must have, and what a failure looks like.

``OperatorCall`` and ``full`` are what a printed snippet imports. Only the search for an example
needs the package hypothesis.
"""

from __future__ import annotations

from qtune.lazy import importer

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
__getattr__ = importer(__name__, _HOMES)
