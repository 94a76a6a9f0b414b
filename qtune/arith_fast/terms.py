"""Split a GEMM into sums that 8-bit kernels with a float32 result give exactly (numerics.md 7).

16-bit activations and weights become ``256 * high + low``. A sum that could reach 2**24 is split
further, over the products it adds. All of it is one list of terms:
``total = sum(coefficient * sum(x_part * weights))``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from qtune.arith.rounding import Int64Array
from qtune.arith_fast.held import ZERO
from qtune.dtype import QuantDType, qint8

FLOAT32_EXACT = 1 << 24
"""float32 holds every integer below this."""

_BYTE = 256


@dataclass(frozen=True, slots=True)
class XPart:
    """A part of the activations as unsigned bytes.

    ``kind``: ``whole`` (held qint8), ``high`` or ``low`` (bytes of qint16). ``zero``: byte of the
    real 0. ``low``, ``high``: range of ``byte - zero``, with 0.
    """

    kind: str
    coefficient: int
    zero: int
    low: int
    high: int


@dataclass(frozen=True, slots=True, eq=False)
class Term:
    """``coefficient * sum(part * weights)`` for the output channels ``rows`` (``None``: all)."""

    part: XPart
    coefficient: int
    weights: Int64Array
    rows: Int64Array | None


def x_parts(dtype: QuantDType, code_range: tuple[int, int] | None) -> list[XPart]:
    """Return the byte parts of activations whose codes lie in ``code_range``."""
    low, high = code_range if code_range is not None else (dtype.qmin, dtype.qmax)
    low, high = min(low, 0), max(high, 0)
    if dtype.bits <= qint8.bits:
        return [XPart("whole", 1, ZERO, low, high)]
    return [XPart("high", _BYTE, ZERO, low >> 8, high >> 8), XPart("low", 1, 0, 0, _BYTE - 1)]


def terms(w: Int64Array, parts: list[XPart], groups: int) -> list[Term]:
    """Return the terms of weights [O, ...]; the first one has every output channel."""
    return [
        Term(part, part.coefficient * weight_coefficient, piece, rows)
        for part in parts
        for weight_coefficient, weights in _weight_bytes(w)
        for piece, rows in _below_limit(weights, part, groups)
    ]


def bounds(w: Int64Array, low: int, high: int) -> tuple[Int64Array, Int64Array]:
    """Return the largest and the smallest sum of every output channel for codes low .. high."""
    flat = w.reshape(w.shape[0], -1)
    low, high = min(low, 0), max(high, 0)
    largest = np.maximum(flat * low, flat * high).sum(axis=1)
    smallest = np.minimum(flat * low, flat * high).sum(axis=1)
    return largest, smallest


def _weight_bytes(w: Int64Array) -> Iterator[tuple[int, Int64Array]]:
    """``w`` as signed bytes with coefficients; the carry of the largest codes is a third one."""
    if w.size == 0 or (w.min() >= -ZERO and w.max() < ZERO):
        yield 1, w
        return
    low = ((w + ZERO) & (_BYTE - 1)) - ZERO
    rest = (w - low) >> 8
    high = np.minimum(rest, ZERO - 1)
    yield 1, low
    yield _BYTE, high
    if (rest > high).any():
        yield _BYTE, rest - high


def _below_limit(
    w: Int64Array, part: XPart, groups: int
) -> Iterator[tuple[Int64Array, Int64Array | None]]:
    """``w`` in pieces of disjoint support, each with sums below 2**24, and their channels."""
    largest, smallest = bounds(w, part.low, part.high)
    if max(largest.max(initial=0), -smallest.min(initial=0)) < FLOAT32_EXACT:
        yield w, None
        return
    over = np.maximum(largest, -smallest) >= FLOAT32_EXACT
    flat = np.abs(w.reshape(w.shape[0], -1)) * max(part.high, -part.low)
    room = FLOAT32_EXACT - 1 - int(flat.max())
    bucket = ((np.cumsum(flat, axis=1) - flat) // room) * over[:, None]
    for index in range(int(bucket.max()) + 1):
        piece = np.where((bucket == index).reshape(w.shape), w, 0)
        rows = np.flatnonzero((bucket == index).any(axis=1))
        if index == 0 or groups > 1:
            yield piece, None
        else:
            yield piece[rows], rows
