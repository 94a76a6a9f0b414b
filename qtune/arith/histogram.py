"""Histograms of magnitudes, one channel, in NumPy (docs/numerics.md section 4).

Bin ``i`` holds ``i * width < abs(x) <= (i + 1) * width``; zero is in bin 0. Bins are closed above,
so that halving their number gives, in every count, the histogram of twice the width.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from qtune.arith.rounding import Int64Array

SMALLEST_WIDTH = np.float32(2.0**-126)
"""Lower bound of the width of bins over a range that is not zero: the smallest normal number."""


def bin_width(top: Any, bins: int) -> np.float32:
    """Return the least float32 ``width`` with ``width * bins >= top``; 0 where ``top`` is 0.

    >>> float(bin_width(1.0, 2048)) == 2.0**-11
    True
    """
    largest = np.float32(top)
    if largest == 0:
        return np.float32(0)
    width = largest / np.float32(bins)
    if float(width) * bins < float(largest):
        width = np.nextafter(width, np.float32(np.inf))
    return np.float32(max(width, SMALLEST_WIDTH))


def magnitude_counts(x: Any, width: np.float32, bins: int) -> Int64Array:
    """Count the finite ``abs(x)`` in bins: int64 [bins]; what lies beyond them is in the last.

    >>> magnitude_counts([0.0, 1.0, -1.5, 4.0], np.float32(1.0), 4)
    array([2, 1, 0, 1])
    """
    values = np.asarray(x)
    with np.errstate(over="ignore"):
        magnitude = np.abs(values[np.isfinite(values)].astype(np.float32))
        step = np.ceil(magnitude / width) if width > 0 else np.zeros_like(magnitude)
    index = np.clip(step, 1, bins).astype(np.int64) - 1
    return np.bincount(index.reshape(-1), minlength=bins).astype(np.int64)


def doublings(width: np.float32, bins: int, top: Any) -> int:
    """Return the least ``k >= 0`` with ``width * bins * 2**k >= top``; 0 for a width of 0.

    >>> doublings(np.float32(0.5), 4, 9.0)
    3
    """
    if width == 0 or top == 0:
        return 0
    fraction, exponent = math.frexp(float(np.float32(top)) / (float(width) * bins))
    return max(0, exponent - 1 if fraction == 0.5 else exponent)


def merged(counts: Any, k: int) -> Int64Array:
    """Return the counts of bins ``2**k`` times as wide, as many as before; none is lost.

    >>> merged([1, 2, 3, 4], 1)
    array([3, 7, 0, 0])
    """
    known = np.asarray(counts, dtype=np.int64)
    index = np.arange(known.size) >> min(k, 62)
    wider = np.zeros_like(known)
    np.add.at(wider, index, known)
    return wider


def stretched(counts: Any, top: Any, wider: Any) -> Int64Array:
    """Return the counts of bins over [0, top] in as many over [0, wider], by the bins' centres.

    Bins move as a whole, so a value may lie one bin beside its own. ``wider >= top``, float32.
    """
    known = np.asarray(counts, dtype=np.int64)
    ratio = np.float32(top) / np.float32(wider) if wider > 0 else np.float32(1)
    centres = np.arange(known.size, dtype=np.float32) + np.float32(0.5)
    index = np.minimum(centres * ratio, np.float32(known.size - 1)).astype(np.int64)
    moved = np.zeros_like(known)
    np.add.at(moved, index, known)
    return moved
