"""Bias of a GEMM on the accumulator's grid, and the scales it needs (numerics.md section 2.2)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from qtune.arith.rounding import Array, FloatArray, Int64Array, round_half_up
from qtune.errors import ArgumentError

INT32_BIAS_LIMIT = 2**30 - 1
"""Largest bias code, with the fused addend, of a 32-bit accumulator."""

INT48_BIAS_LIMIT = 2**46 - 1
"""The same of the 48-bit accumulator of int16 x int16."""


class BiasPlan(NamedTuple):
    """Bias codes and the weight scales they hold for.

    ``bias_q`` int64 [C]; ``s_w`` float32 [C], larger than the given scale where ``widened``.
    """

    bias_q: Int64Array
    s_w: FloatArray
    widened: Array


def quantize_bias(
    bias: Any,
    s_x: float,
    s_w: Any,
    limit: int,
    addend_scale: float | None = None,
    addend_extreme: int = 128,
) -> BiasPlan:
    """Return ``floor(bias / (s_x * s_w[c]) + 0.5)``, widening ``s_w[c]`` where it would not fit.

    ``bias`` [C] or ``None`` (zeros), ``s_w`` float32, one or [C]. ``abs(bias_q)`` plus
    ``addend_extreme * addend_scale / (s_x * s_w[c])`` of a fused addend stays within ``limit``
    (``INT32_BIAS_LIMIT`` or ``INT48_BIAS_LIMIT``): the scale grows to the next float32 that fits.
    """
    scales = np.atleast_1d(np.asarray(s_w, dtype=np.float32))
    values = np.zeros(scales.shape) if bias is None else np.asarray(bias, dtype=np.float64)
    if not np.isfinite(values).all():
        raise ArgumentError("a bias holds NaN or infinity: it has no integer form")
    values, scales = np.broadcast_arrays(values, scales)
    addend = addend_extreme * float(np.float32(addend_scale)) if addend_scale is not None else 0.0
    step_x = float(np.float32(s_x))
    codes = _codes(values, step_x, scales)
    widened = _exceeds(codes, addend, step_x, scales, limit)
    fitted = np.where(widened, _ceil_float32((np.abs(values) + addend) / (step_x * limit)), scales)
    over = widened
    while over.any():
        codes = _codes(values, step_x, fitted)
        over = _exceeds(codes, addend, step_x, fitted, limit)
        fitted = np.where(over, np.nextafter(fitted, np.float32(np.inf)), fitted)
    return BiasPlan(codes.astype(np.int64), fitted.astype(np.float32), widened)


def _codes(bias: FloatArray, s_x: float, s_w: FloatArray) -> FloatArray:
    return round_half_up(bias / (s_x * s_w.astype(np.float64)))


def _exceeds(codes: FloatArray, addend: float, s_x: float, s_w: FloatArray, limit: int) -> Array:
    return np.asarray(np.abs(codes) + addend / (s_x * s_w.astype(np.float64)) > limit)


def _ceil_float32(values: FloatArray) -> FloatArray:
    nearest = values.astype(np.float32)
    return np.where(nearest < values, np.nextafter(nearest, np.float32(np.inf)), nearest)
