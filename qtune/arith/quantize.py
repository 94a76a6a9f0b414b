"""Quantize, dequantize, fake-quantize and scales in NumPy (numerics.md section 1).

``scale`` is one float32 or a vector of them. One value serves the whole tensor whatever ``axis``
says; a longer vector runs along ``axis``, which may count from the end.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from qtune.arith.rounding import Array, FloatArray, Int64Array, round_half_up, saturate
from qtune.dtype import QuantDType
from qtune.errors import ArgumentError, NonFiniteError

ZERO_RANGE_SCALE = np.float32(2.0**-23)
"""Scale of a tensor whose absmax is 0 (1.1920929e-07)."""

SMALLEST_SCALE = np.float32(2.0**-40)
"""Lower bound of any other scale."""

RANGE_SLACK = 1.0 + 2.0**-22
"""Widening of the in-range interval, so that a min-max scale never clips its own absmax."""


def quantize(x: Any, scale: Any, dtype: QuantDType, axis: int = -1) -> Int64Array:
    """Return int64 codes ``clamp(floor(x / scale + 0.5), qmin, qmax)``.

    float32 arithmetic (half too), float64 for a float64 ``x``. Infinities saturate.
    Raises ``NonFiniteError`` on NaN.
    """
    values = compute_dtype(x)
    if np.isnan(values).any():
        count = int(np.isnan(values).sum())
        raise NonFiniteError(
            f"quantize got {count} NaN in a tensor of shape {values.shape}: NaN has no code. "
            "Remove the NaN from the data or from the operator that makes it."
        )
    return saturate(_codes(values, channel_scale(scale, values, axis)), dtype)


def dequantize(codes: Any, scale: Any, axis: int = -1) -> FloatArray:
    """Return float32 ``codes * scale``."""
    values = np.asarray(codes).astype(np.float32)
    return values * channel_scale(scale, values, axis)


def fake_quantize(x: Any, scale: Any, dtype: QuantDType, axis: int = -1) -> FloatArray:
    """Return ``dequantize(quantize(x))`` in the dtype of ``x``; NaN passes, infinities saturate."""
    values = compute_dtype(x)
    factor = channel_scale(scale, values, axis)
    codes = np.clip(_codes(values, factor), dtype.qmin, dtype.qmax)
    return np.asarray((codes * factor).astype(np.asarray(x).dtype))


def in_range(x: Any, scale: Any, dtype: QuantDType, axis: int = -1) -> Array:
    """Return the bool mask of elements that do not clip; NaN is out of range.

    ``(qmin - 0.5) * scale * (1 + 2**-22) <= x <= (qmax + 0.5) * scale * (1 + 2**-22)``.
    """
    values = np.asarray(x).astype(np.float64)
    factor = channel_scale(scale, values, axis) * RANGE_SLACK
    low, high = (dtype.qmin - 0.5) * factor, (dtype.qmax + 0.5) * factor
    return np.asarray((values >= low) & (values <= high))


def scale_from_absmax(absmax: Any, dtype: QuantDType) -> FloatArray:
    """Return the float32 scale ``absmax / ((qmax - qmin) / 2)`` of observed values.

    absmax 0 gives 2**-23, any other scale is at least 2**-40. ``absmax`` may be an array.
    Raises ``NonFiniteError`` on NaN or infinity.
    """
    return _scale(absmax, dtype.divisor)


def scale_from_threshold(t: Any, dtype: QuantDType) -> FloatArray:
    """Return the float32 scale ``t / -qmin`` of a fixed threshold (128 for qint8)."""
    return _scale(t, float(-dtype.qmin))


def power_of_two_scale(scale: Any) -> FloatArray:
    """Return each float32 scale rounded up to a power of two (numerics.md section 4).

    >>> power_of_two_scale([0.1, 0.125, 1.0]).tolist()
    [0.125, 0.125, 1.0]
    """
    fraction, exponent = np.frexp(np.asarray(scale, dtype=np.float32))
    one = np.float32(1.0)
    return np.asarray(np.ldexp(one, np.where(fraction == 0.5, exponent - 1, exponent)))


def compute_dtype(x: Any) -> FloatArray:
    """Return ``x`` in the dtype that quantization computes in: float64 stays, all else float32."""
    values = np.asarray(x)
    return values if values.dtype == np.float64 else values.astype(np.float32)


def channel_scale(scale: Any, x: Array, axis: int) -> FloatArray:
    """Return ``scale`` (rounded to float32) in the dtype of ``x``, shaped to broadcast on it."""
    factor = np.asarray(scale, dtype=np.float32).astype(x.dtype)
    if factor.size == 1:
        return factor.reshape(())
    if not -x.ndim <= axis < x.ndim or factor.shape != (x.shape[axis],):
        raise ArgumentError(
            f"scale of shape {factor.shape} does not fit axis {axis} of a tensor of shape "
            f"{x.shape}; give one scale, or one per element of that axis"
        )
    shape = [1] * x.ndim
    shape[axis] = factor.size
    return factor.reshape(shape)


def _codes(values: FloatArray, factor: FloatArray) -> FloatArray:
    with np.errstate(over="ignore", invalid="ignore"):
        return round_half_up(values / factor)


def _scale(extent: Any, divisor: float) -> FloatArray:
    values = np.asarray(extent, dtype=np.float32)
    if not np.isfinite(values).all():
        raise NonFiniteError(
            f"no scale for a range of {values.max()}: the data hold NaN or infinity. Remove them."
        )
    if (values < 0).any():
        raise ArgumentError(f"a range must not be negative, got {values.min()}")
    scale = np.maximum(values / np.float32(divisor), SMALLEST_SCALE)
    return np.asarray(np.where(values == 0, ZERO_RANGE_SCALE, scale).astype(np.float32))
