"""int16 tables whose entries lie a power of two of codes apart (numerics.md section 4, level 3)."""

from __future__ import annotations

import numpy as np

from qtune.arith.rounding import FloatArray, Int64Array
from qtune.arith.table import (
    ENTRIES,
    SEGMENT_COUNTS,
    RealFunction,
    SegmentTable,
    segment_table,
    table_at,
)
from qtune.dtype import QuantDType, qint16

_CELL = ENTRIES - 1
"""Codes of the shortest segment: an entry for each."""

_MOST = SEGMENT_COUNTS[-1]


def power_of_two_table(
    f: RealFunction, s_x: float, s_y: float, lo: int, hi: int, out: QuantDType = qint16
) -> SegmentTable:
    """Return the table of ``f`` on ``lo .. hi`` with at most 64 segments of ``63 * 2**k`` codes.

    Every position between two entries is then an exact shift. ``k`` is small where ``f`` bends
    much. The last segment ends at ``hi`` whatever its length. Of the tables that fit, the one with
    the least error.
    """
    if hi - lo <= _CELL:
        return segment_table(f, s_x, s_y, lo, hi, out)
    bend = _bend(f, s_x, s_y, lo, hi, out)
    tables = []
    for tolerance in 2.0 ** np.arange(-8, 40):
        points = _points(bend, float(tolerance), lo, hi)
        if points is not None:
            tables.append(table_at(f, s_x, s_y, points, out))
            if len(tables) == 2 or tables[0].error <= 1:
                break
    return min(tables, key=lambda table: table.error)


def _bend(f: RealFunction, s_x: float, s_y: float, lo: int, hi: int, out: QuantDType) -> FloatArray:
    """The largest chord error of each cell, in output steps for entries one code apart."""
    codes = np.arange(lo, hi + 1, dtype=np.float64)
    with np.errstate(all="ignore"):
        steps = np.asarray(f(codes * float(np.float32(s_x))), dtype=np.float64) / s_y
    steps = np.clip(np.nan_to_num(steps, nan=0.0), out.qmin - 1.0, out.qmax + 1.0)
    bend = np.pad(np.abs(np.diff(steps, 2)) / 8, (1, 0))
    return np.asarray(np.maximum.reduceat(bend, np.arange(0, hi - lo, _CELL)))


def _points(bend: FloatArray, tolerance: float, lo: int, hi: int) -> Int64Array | None:
    """Dividing points of the longest segments within ``tolerance``, ``None`` if over 64."""
    starts = [0]
    while starts[-1] < len(bend):
        if len(starts) > _MOST:
            return None
        start, length = starts[-1], 1
        while start + length < len(bend) and _fits(bend[start : start + 2 * length], tolerance):
            length *= 2
        starts.append(start + length)
    points = lo + _CELL * np.array(starts[:-1], dtype=np.int64)
    return np.append(points, hi)


def _fits(cells: FloatArray, tolerance: float) -> bool:
    return float(cells.max()) * len(cells) ** 2 <= tolerance
