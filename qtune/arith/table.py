"""Lookup tables: 256 entries for int8, piecewise linear segments for int16 (numerics.md section 3).

``f`` maps a float64 array to a float64 array. Where it is undefined (NaN) a table holds the entry
of the nearest code at which it is defined: such codes lie outside the calibrated range.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from qtune.arith.quantize import dequantize, quantize
from qtune.arith.rounding import FloatArray, Int64Array, round_half_up, saturate
from qtune.dtype import QuantDType, qint8, qint16, qint32
from qtune.errors import ArgumentError, NonFiniteError

RealFunction = Callable[[FloatArray], FloatArray]

ENTRIES = 64
"""Entries of one segment: its first code, 62 points between, its last code."""

SEGMENT_COUNTS = (8, 16, 32, 64)
"""Numbers of segments that are tried, smallest first."""

POSITION_BITS = 16
"""Fraction bits of a position between two entries."""

STRATEGIES = ("evenly", "curvature", "mix")

_STEPS = ENTRIES - 1


@dataclass(frozen=True, slots=True, eq=False)
class SegmentTable:
    """A function on int16 codes, linear between the entries of its segments.

    ``first``, ``last``: int64 [N] codes, ``last[i] == first[i + 1]``, ``last > first``.
    ``entries``: int64 [N, 64] in steps of the output scale, within int32.
    ``error``: largest distance in steps to ``quantize(f)`` on ``first[0] .. last[-1]``.
    """

    first: Int64Array
    last: Int64Array
    entries: Int64Array
    error: int

    @property
    def segments(self) -> int:
        """Number of segments."""
        return len(self.first)


def int8_table(f: RealFunction, s_x: float, s_y: float, out: QuantDType = qint8) -> Int64Array:
    """Return the codes of ``f`` for the codes -128 .. 127, int64 [256], index ``code + 128``.

    ``entry = quantize(f(code * s_x), s_y)``, the product in float32, all else in float64.
    """
    codes = np.arange(qint8.qmin, qint8.qmax + 1)
    return quantize(_defined(f, dequantize(codes, s_x).astype(np.float64)), s_y, out)


def segment_table(
    f: RealFunction,
    s_x: float,
    s_y: float,
    lo: int,
    hi: int,
    out: QuantDType = qint16,
    strategy: str = "mix",
) -> SegmentTable:
    """Return the table of ``f`` on the codes ``lo .. hi`` with the fewest segments that suffice.

    8, 16, 32 or 64 segments (fewer where ``lo .. hi`` has fewer steps): the smallest number with an
    error of at most one step, else the best of 64. ``strategy`` places the dividing points:
    ``evenly``, by ``curvature``, or the better of both (``mix``).
    """
    if strategy not in STRATEGIES:
        known = ", ".join(STRATEGIES)
        raise ArgumentError(f"unknown strategy {strategy!r}; choose one of: {known}")
    if not qint16.qmin <= lo <= hi <= qint16.qmax:
        raise ArgumentError(f"expected int16 codes lo <= hi, got lo={lo}, hi={hi}")
    if lo == hi:
        return _constant(f, s_x, s_y, lo, out)
    placements = [s for s in STRATEGIES[:2] if strategy in (s, "mix")]
    best: SegmentTable | None = None
    for count in SEGMENT_COUNTS:
        for placement in placements:
            points = _dividing_points(placement, f, s_x, s_y, lo, hi, min(count, hi - lo), out)
            table = table_at(f, s_x, s_y, points, out)
            if best is None or table.error < best.error:
                best = table
        if best is not None and best.error <= 1:
            break
    if best is None:
        raise ArgumentError(f"no dividing points for strategy {strategy!r}")
    return best


def lookup(table: SegmentTable, codes: Any, out: QuantDType = qint16) -> Int64Array:
    """Return the table's value at int16 codes, int64, saturated to ``out``.

    Position ``floor((q - first) * 63 * 65536 / (last - first) + 0.5)``, linear between entries, one
    rounding. Codes outside the segments take the value at the nearer end.
    """
    q = np.clip(np.asarray(codes, dtype=np.int64), table.first[0], table.last[-1])
    segment = np.searchsorted(table.first[1:], q, side="right")
    width = (table.last - table.first)[segment]
    numerator = (q - table.first[segment]) * (_STEPS << POSITION_BITS)
    position = (2 * numerator + width) // (2 * width)
    left = position >> POSITION_BITS
    fraction = position & ((1 << POSITION_BITS) - 1)
    below = table.entries[segment, left]
    above = table.entries[segment, np.minimum(left + 1, _STEPS)]
    total = (below << POSITION_BITS) + (above - below) * fraction
    return saturate((total + (1 << (POSITION_BITS - 1))) >> POSITION_BITS, out)


def table_error(
    table: SegmentTable, f: RealFunction, s_x: float, s_y: float, out: QuantDType = qint16
) -> int:
    """Return the largest distance in steps between table and ``quantize(f)`` on its codes."""
    codes = np.arange(table.first[0], table.last[-1] + 1)
    exact = quantize(_defined(f, dequantize(codes, s_x).astype(np.float64)), s_y, out)
    return int(np.abs(lookup(table, codes, out) - exact).max())


def _constant(f: RealFunction, s_x: float, s_y: float, code: int, out: QuantDType) -> SegmentTable:
    """One segment for a range of one code; a segment's last code lies above its first."""
    first = min(code, qint16.qmax - 1)
    value = _entries(f, np.array([code], dtype=np.float64), s_x, s_y)
    return SegmentTable(
        np.array([first]), np.array([first + 1]), np.full((1, ENTRIES), value[0]), error=0
    )


def table_at(
    f: RealFunction, s_x: float, s_y: float, points: Int64Array, out: QuantDType = qint16
) -> SegmentTable:
    """Return the table of ``f`` whose segments lie between rising codes, int64 [N + 1]."""
    first, last = points[:-1], points[1:]
    steps = np.arange(ENTRIES) / _STEPS
    positions = first[:, None] + (last - first)[:, None] * steps
    entries = _entries(f, positions, s_x, s_y)
    table = SegmentTable(first, last, entries, error=0)
    return SegmentTable(first, last, entries, table_error(table, f, s_x, s_y, out))


def _entries(f: RealFunction, positions: FloatArray, s_x: float, s_y: float) -> Int64Array:
    values = _defined(f, positions * float(np.float32(s_x)))
    with np.errstate(over="ignore"):
        return saturate(round_half_up(values / float(np.float32(s_y))), qint32)


def _dividing_points(
    placement: str,
    f: RealFunction,
    s_x: float,
    s_y: float,
    lo: int,
    hi: int,
    count: int,
    out: QuantDType,
) -> Int64Array:
    if placement == "evenly":
        return _evenly(lo, hi, count)
    return _by_curvature(_steps_of_output(f, s_x, s_y, lo, hi, out), lo, hi, count)


def _evenly(lo: int, hi: int, count: int) -> Int64Array:
    count = min(count, hi - lo)
    return round_half_up(lo + (hi - lo) * np.arange(count + 1) / count).astype(np.int64)


def _steps_of_output(
    f: RealFunction, s_x: float, s_y: float, lo: int, hi: int, out: QuantDType
) -> FloatArray:
    """``f / s_y`` at every code, cut at the output's ends: beyond them no accuracy is needed."""
    codes = np.arange(lo, hi + 1, dtype=np.float64)
    with np.errstate(over="ignore"):
        steps = _defined(f, codes * float(np.float32(s_x))) / float(np.float32(s_y))
    return np.asarray(np.clip(steps, out.qmin - 1.0, out.qmax + 1.0))


def _by_curvature(values: FloatArray, lo: int, hi: int, count: int) -> Int64Array:
    """Points that give every segment the same chord error, as far as whole cells allow.

    The chord error of a segment is ``max(abs(f'')) * (length / 63)**2 / 8``. Points lie a multiple
    of 63 codes apart: a segment of one such cell has an entry for each code, hence no error.
    The cells are counted from the end where the function bends most.
    """
    bend = np.abs(np.diff(values, 2, append=values[-1], prepend=values[0]))[:-1] / 8
    forward = bend[:_STEPS].max() >= bend[-_STEPS:].max()
    grid = np.arange(0, hi - lo, _STEPS)
    edges = lo + np.append(grid, hi - lo) if forward else hi - np.append(grid, hi - lo)[::-1]
    worst = np.maximum.reduceat(bend, edges[:-1] - lo)
    starts = _cut_evenly_bent(worst, count)
    return np.asarray(edges[np.append(starts, len(worst))], dtype=np.int64)


def _cut_evenly_bent(worst: FloatArray, count: int) -> list[int]:
    """First cells of at most ``count`` segments whose largest error is about the smallest one."""
    low, high = 2.0**-10, float(worst.max()) * len(worst) ** 2 + 1.0
    best = _cut_greedily(worst, high, count) or [0]
    while high > 1.05 * low:
        tolerance = (low * high) ** 0.5
        found = _cut_greedily(worst, tolerance, count)
        if found is None:
            low = tolerance
        else:
            high, best = tolerance, found
    return best


def _cut_greedily(worst: FloatArray, tolerance: float, count: int) -> list[int] | None:
    """First cells of at most ``count`` segments within the tolerance, or ``None``."""
    starts: list[int] = []
    start = 0
    while start < len(worst):
        if len(starts) == count:
            return None
        starts.append(start)
        lengths = np.arange(1, len(worst) - start + 1, dtype=np.float64)
        errors = np.maximum.accumulate(worst[start:]) * lengths**2
        start += max(1, int(np.searchsorted(errors, tolerance, side="right")))
    return starts


def _defined(f: RealFunction, x: FloatArray) -> FloatArray:
    """Evaluate ``f``; NaN takes the value at the nearest argument at which ``f`` is defined."""
    with np.errstate(all="ignore"):
        y = np.asarray(f(x), dtype=np.float64)
    bad = np.isnan(y)
    if not bad.any():
        return y
    if bad.all():
        raise NonFiniteError("a table's function gives NaN on its whole range")
    flat_x, flat_y, flat_bad = x.ravel(), y.ravel().copy(), bad.ravel()
    good_x, good_y = flat_x[~flat_bad], flat_y[~flat_bad]
    order = np.argsort(good_x, kind="stable")
    good_x, good_y = good_x[order], good_y[order]
    right = np.clip(np.searchsorted(good_x, flat_x[flat_bad]), 0, len(good_x) - 1)
    left = np.maximum(right - 1, 0)
    x_bad = flat_x[flat_bad]
    nearer_left = np.abs(x_bad - good_x[left]) <= np.abs(good_x[right] - x_bad)
    flat_y[flat_bad] = np.where(nearer_left, good_y[left], good_y[right])
    return flat_y.reshape(y.shape)
