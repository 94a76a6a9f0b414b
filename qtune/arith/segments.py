"""What a user may say about the segments of an int16 table (numerics.md section 3)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from qtune.arith.power_segments import power_of_two_table
from qtune.arith.quantize import quantize
from qtune.arith.rounding import Int64Array
from qtune.arith.table import (
    SEGMENT_COUNTS,
    STRATEGIES,
    RealFunction,
    SegmentTable,
    segment_table,
    table_at,
    table_error,
)
from qtune.dtype import QuantDType, qint16
from qtune.errors import ArgumentError

SYMMETRIC_MODES = ("centrosymmetric", "axisymmetric")
"""``f(-x) == -f(x)`` and ``f(-x) == f(x)``."""


@dataclass(frozen=True, slots=True)
class SegmentOptions:
    """How the segments of an int16 table are placed; everything left out is found automatically.

    ``strategy`` places dividing points. ``dividing_points``: the upper bound of every segment, as
    values of the input. ``input_range``: (low, high) that the segments cover in place of the
    observed range. ``symmetric_mode``: build the half from 0 upwards and mirror it.
    ``inverse_func``: the inverse of a decreasing function; the segments then leave out the inputs
    whose results lie beyond the output's grid.
    """

    strategy: str = "mix"
    dividing_points: tuple[float, ...] | None = None
    input_range: tuple[float, float] | None = None
    symmetric_mode: str | None = None
    inverse_func: Callable[[Any], Any] | None = None

    def __post_init__(self) -> None:
        for problem in self._problems():
            raise ArgumentError(problem)

    def _problems(self) -> list[str]:
        checks = (
            _not_listed("auto_divide_strategy", self.strategy, STRATEGIES),
            _not_listed("symmetric_mode", self.symmetric_mode, (None, *SYMMETRIC_MODES)),
            _bad_range(self.input_range),
            _bad_points(self.dividing_points),
            self._contradiction(),
        )
        return [problem for problem in checks if problem]

    def _contradiction(self) -> str:
        if self.inverse_func is not None and not callable(self.inverse_func):
            return f"inverse_func must be a function of a tensor, got {self.inverse_func!r}"
        if self.inverse_func is not None and self.input_range is not None:
            return "input_range and inverse_func both give the range of the input; pass one of them"
        if self.inverse_func is not None and self.symmetric_mode is not None:
            return (
                "inverse_func needs a decreasing function, symmetric_mode one with a mirror image"
            )
        if self.dividing_points is not None and self.symmetric_mode is not None:
            low = self.dividing_points[0]
            return (
                "" if low > 0 else f"with symmetric_mode dividing_points start above 0, got {low}"
            )
        return ""


def segment_table_by(
    options: SegmentOptions,
    f: RealFunction,
    s_x: float,
    s_y: float,
    lo: int,
    hi: int,
    out: QuantDType = qint16,
    *,
    power_of_two: bool = False,
) -> SegmentTable:
    """Return the table of ``f`` with segments as ``options`` ask, else on the codes ``lo .. hi``.

    ``power_of_two``: entries lie a power of two of codes apart (consistency level 3), unless the
    options give dividing points. Raises ``ArgumentError`` where nothing is left to cover on the
    input's grid.
    """
    lo, hi = _span(options, s_x, s_y, lo, hi, out)
    if options.symmetric_mode is None:
        return _one_sided(options, f, s_x, s_y, lo, hi, out, power_of_two)
    far = max(hi, min(-lo, qint16.qmax), 1)
    half = _one_sided(options, f, s_x, s_y, 0, far, out, power_of_two)
    whole = _mirrored(half, -1 if options.symmetric_mode == "centrosymmetric" else 1)
    return replace(whole, error=table_error(whole, f, s_x, s_y, out))


def _span(
    options: SegmentOptions, s_x: float, s_y: float, lo: int, hi: int, out: QuantDType
) -> tuple[int, int]:
    if options.input_range is not None:
        lo, hi = _codes(options.input_range, s_x)
    if options.inverse_func is not None:
        lo, hi = _reached(options.inverse_func, s_x, s_y, lo, hi, out)
    return lo, hi


def _reached(
    inverse: Callable[[Any], Any], s_x: float, s_y: float, lo: int, hi: int, out: QuantDType
) -> tuple[int, int]:
    """The part of ``lo .. hi`` whose results lie on the output's grid.

    An end at which the inverse is undefined, or falls on the wrong side, leaves the range as it is:
    1 / x never comes below 0.
    """
    ends = np.array([out.qmax, out.qmin], dtype=np.float64) * float(np.float32(s_y))
    with np.errstate(all="ignore"):
        low, high = (float(value) for value in np.asarray(inverse(ends), dtype=np.float64))
    first = max(lo, math.ceil(low / s_x)) if math.isfinite(low) else lo
    if not lo <= first <= hi:
        raise ArgumentError(
            f"inverse_func puts the range of the input above {low:.6g}, and nothing above "
            f"{hi * s_x:.6g} was observed; it must be the inverse of a decreasing function"
        )
    last = math.floor(high / s_x) if math.isfinite(high) and high > low else hi
    return first, min(hi, max(last, first))


def _one_sided(
    options: SegmentOptions,
    f: RealFunction,
    s_x: float,
    s_y: float,
    lo: int,
    hi: int,
    out: QuantDType,
    power_of_two: bool,
) -> SegmentTable:
    if options.dividing_points is None and power_of_two:
        return power_of_two_table(f, s_x, s_y, lo, hi, out)
    if options.dividing_points is None:
        return segment_table(f, s_x, s_y, lo, hi, out, options.strategy)
    bounds = np.unique(_codes(options.dividing_points, s_x))
    bounds = bounds[bounds > lo]
    if len(bounds) == 0:
        raise ArgumentError(
            f"every one of the dividing_points {options.dividing_points} lies at or below the "
            f"input's range, which begins at {lo * s_x:.6g}; the last one is the end of the table"
        )
    return table_at(f, s_x, s_y, np.append(lo, bounds), out)


def _mirrored(half: SegmentTable, sign: int) -> SegmentTable:
    """``half``, which begins at 0, behind its mirror image."""
    return SegmentTable(
        np.append(-half.last[::-1], half.first),
        np.append(-half.first[::-1], half.last),
        np.concatenate([sign * half.entries[::-1, ::-1], half.entries]),
        error=half.error,
    )


def _codes(values: tuple[float, ...], s_x: float) -> Int64Array:
    return quantize(np.array(values, dtype=np.float64), s_x, qint16)


def _not_listed(name: str, value: str | None, known: tuple[str | None, ...]) -> str:
    if value in known:
        return ""
    return f"{name} must be one of {', '.join(map(repr, known))}; got {value!r}"


def _bad_range(span: tuple[float, float] | None) -> str:
    if span is None or (len(span) == 2 and all(map(math.isfinite, span)) and span[0] < span[1]):
        return ""
    return f"input_range must be (low, high) with low < high; got {span}"


def _bad_points(points: tuple[float, ...] | None) -> str:
    if points is None:
        return ""
    most = SEGMENT_COUNTS[-1]
    rises = all(a < b for a, b in pairwise(points)) and all(map(math.isfinite, points))
    if 1 <= len(points) <= most and rises:
        return ""
    return f"dividing_points must be 1 to {most} rising numbers; got {points}"
