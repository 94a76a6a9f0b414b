"""Strategies of hypothesis for quantized operators: calls, tensors, codes, scales, attributes.

They draw the ends of the grid, its ties and saturating sums far more often than chance would, and
shrink to small shapes and small codes. Needs the package hypothesis: ``pip install "qtune[fuzz]"``.
"""

from __future__ import annotations

try:
    import hypothesis  # noqa: F401 - to say what to do where it is missing
except ImportError as error:
    raise ImportError(
        "qtune.testing.strategies: the package hypothesis is not installed; "
        'pip install "qtune[fuzz]"'
    ) from error

from qtune.testing.strategies.calls import attributes, operators
from qtune.testing.strategies.values import (
    accumulators,
    codes,
    real_values,
    scales,
    shapes,
    tensors,
)

__all__ = [
    "accumulators",
    "attributes",
    "codes",
    "operators",
    "real_values",
    "scales",
    "shapes",
    "tensors",
]
