"""Saturation of accumulators, counted (numerics.md section 2.1)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(slots=True)
class SaturationCount:
    """How many accumulator elements were clamped inside a ``count_saturation`` block."""

    elements: int = 0


_active: ContextVar[SaturationCount | None] = ContextVar("saturation", default=None)


@contextmanager
def count_saturation() -> Iterator[SaturationCount]:
    """Count the accumulator elements that saturate inside the block.

    An interpreter opens one block per node, so that its report can name the operator.
    """
    count = SaturationCount()
    token = _active.set(count)
    try:
        yield count
    finally:
        _active.reset(token)


def note_saturation(elements: int) -> None:
    """Add to the count of the block that is open; without one, nothing counts."""
    count = _active.get()
    if count is not None:
        count.elements += elements


def saturate_accumulator(acc: np.ndarray[Any, Any], bits: int) -> np.ndarray[Any, Any]:
    """Clamp to a signed integer of ``bits`` bits and count the clamped elements."""
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    if acc.size == 0 or (acc.min() >= low and acc.max() <= high):
        return acc
    note_saturation(int(np.count_nonzero((acc < low) | (acc > high))))
    return np.asarray(np.clip(acc, low, high))
