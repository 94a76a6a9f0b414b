"""Sampling a map at computed positions: positions of 8 fraction bits, one rounding (numerics.md 3).

Shared by grid_sample, warp and deformable convolution. Positions are integers that count 256ths of
an element; ``(x, y)`` lies along the last axis, as in torch's grids.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from qtune.arith.requantize import multiplier_shift, rescale
from qtune.arith.rounding import Int64Array

POSITION_BITS = 8
"""Fraction bits of a position."""

ONE = 1 << POSITION_BITS
"""One element."""

_LARGEST = float(1 << 29)
_LONGEST = 47
_SHIFT = 2 * POSITION_BITS


def position_factor(elements: float) -> tuple[int, int]:
    """Return ``(m, n)``, 1 <= n <= 47: ``code * m / 2**n`` is ``code * elements`` in 256ths.

    m has 31 bits: positions reach further than codes, so 15 bits would move the far end of a map.
    ``elements`` beyond 2**21 puts every code but 0 outside of any map, and is cut there.

    >>> position_factor(0.5)
    (1073741824, 23)
    """
    m, n = multiplier_shift(min(elements * ONE, _LARGEST), 31)
    return (m, n) if n <= _LONGEST else (0, 1)


def positions(codes: Any, m: Any, n: Any, base: Any, low: Any, high: Any) -> Int64Array:
    """Return ``clamp(base + rescale(codes, m, n), low, high)``; everything broadcasts."""
    moved = np.asarray(base, dtype=np.int64) + rescale(codes, m, n)
    return np.asarray(np.clip(moved, low, high))


def sample_bilinear(x: Any, at: Any) -> Int64Array:
    """Return codes [N, C, H, W] of ``x`` at positions [N, h, w, 2], as int64 [N, C, h, w].

    Four taps, weights of 256 each way, one rounding half up; outside of the map lies code 0.
    """
    at = np.asarray(at, dtype=np.int64)
    column, row = np.moveaxis(at >> POSITION_BITS, -1, 0)
    total: Any = 0
    for dy, dx, weight in _corners(at & (ONE - 1)):
        total = total + _taken(x, row + dy, column + dx) * weight[:, None]
    return np.asarray((total + (1 << (_SHIFT - 1))) >> _SHIFT)


def sample_nearest(x: Any, at: Any) -> Int64Array:
    """As :func:`sample_bilinear`, but the element nearest to each position, half up."""
    column, row = np.moveaxis(nearest_element(np.asarray(at, dtype=np.int64)), -1, 0)
    return _taken(x, row, column)


def nearest_element(at: Any) -> Any:
    """Return the index of the element nearest to a position; NumPy or torch integers."""
    return (at + ONE // 2) >> POSITION_BITS


def _corners(fraction: Int64Array) -> Iterator[tuple[int, int, Int64Array]]:
    right, below = np.moveaxis(fraction, -1, 0)
    for dy, down in enumerate((ONE - below, below)):
        for dx, across in enumerate((ONE - right, right)):
            yield dy, dx, down * across


def _taken(x: Any, row: Int64Array, column: Int64Array) -> Int64Array:
    """``x`` [N, C, H, W] at rows and columns [N, h, w]; 0 outside."""
    codes = np.asarray(x, dtype=np.int64)
    batch, _, height, width = codes.shape
    inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
    image = np.arange(batch).reshape(-1, 1, 1)
    taken = codes[image, :, np.clip(row, 0, height - 1), np.clip(column, 0, width - 1)]
    return np.asarray(np.moveaxis(np.where(inside[..., None], taken, 0), -1, 1))
