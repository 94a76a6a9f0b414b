"""Fixed-point multipliers and requantization in NumPy (numerics.md sections 2.3 and 3).

A real factor ``M`` is held as ``m / 2**n`` with a normalised integer ``m`` of 15 bits (31 for high
precision). Accumulators are int64 arrays: int32 values, or 48-bit ones of int16 x int16.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from qtune.arith.rounding import Int64Array, saturate
from qtune.dtype import QuantDType, qint32
from qtune.errors import ArgumentError

MULTIPLIER_BITS = 15
"""Bits of a normalised multiplier; a sum over a common shift takes as many."""

HIGH_PRECISION_BITS = 31
"""The same with high precision (consistency levels 0 to 4)."""

TIE_BITS = 6
"""Bits below the last one of a sum whose ties are to go up: ``raised`` sets the lowest."""

RESCALE_LIMIT = 1 << 62
"""``rescale`` clamps its result here: far outside any dtype, and one addition can't wrap it."""

LIMB_BITS = 24
"""Bits of the lower of the two limbs that 48-bit accumulators are split into."""

_MAX_SHIFT = 126
"""Longer shifts give 0 as this one does: no product has 126 bits."""


def multiplier_shift(M: float, bits: int = MULTIPLIER_BITS) -> tuple[int, int]:
    """Return ``(m, n)`` with ``M = m / 2**n`` and ``2**(bits-1) <= abs(m) < 2**bits``.

    ``m = floor(abs(M) * 2**n + 0.5)`` with the sign of M; M = 0 gives (0, 0).

    >>> multiplier_shift(0.1 / 0.20284509658813477)
    (32308, 16)
    """
    if not math.isfinite(M):
        raise ArgumentError(f"a requantize multiplier must be finite, got {M}")
    if M == 0:
        return 0, 0
    fraction, exponent = math.frexp(abs(M))
    m = math.floor(math.ldexp(fraction, bits) + 0.5)
    n = bits - exponent
    if m == 1 << bits:
        m, n = m >> 1, n - 1
    return (m if M > 0 else -m), n


def multipliers_shifts(M: Any, bits: int = MULTIPLIER_BITS) -> tuple[Int64Array, Int64Array]:
    """Return the int64 arrays ``m`` and ``n`` of every multiplier in ``M``, in its shape."""
    values = np.asarray(M, dtype=np.float64)
    pairs = [multiplier_shift(float(v), bits) for v in values.ravel()]
    table = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return table[:, 0].reshape(values.shape), table[:, 1].reshape(values.shape)


def rescale(acc: Any, m: Any, n: Any) -> Int64Array:
    """Return ``(acc * m + 2**(n-1)) >> n`` exactly, without saturation to a dtype.

    n = 0 has no rounding term, n < 0 shifts left. Results beyond ``RESCALE_LIMIT`` are clamped
    there. ``acc``, ``m`` and ``n`` broadcast.

    >>> rescale([7860], 1302661570, 37).tolist()
    [74]
    """
    acc, m, n = np.broadcast_arrays(*(np.asarray(v, dtype=np.int64) for v in (acc, m, n)))
    n = np.minimum(n, _MAX_SHIFT)
    if _fits_int64(acc, m, n):
        half = np.where(n > 0, np.int64(1) << np.maximum(n - 1, 0), 0)
        return np.asarray((acc * m + half) >> n)
    if _fits_limbs(acc, m, n):
        return _rescale_limbs(acc, m, n)
    # Small shifts of what 64 bits don't hold, and shifts to the left: Python's unbounded integers.
    wide = np.frompyfunc(_rescale_one, 3, 1)(acc, m, n)
    return np.asarray(wide).astype(np.int64)


def raised(acc: Any) -> Int64Array:
    """Return ``64 * acc + 1``: the sum a 64th of a step higher, for a shift that counts 6 more."""
    return (np.asarray(acc, dtype=np.int64) << TIE_BITS) + 1


def requantize(acc: Any, m: Any, n: Any, dtype: QuantDType) -> Int64Array:
    """Return ``saturate((acc * m + 2**(n-1)) >> n)``: one rounding, half up, then saturation."""
    return saturate(rescale(acc, m, n), dtype)


def saturate_accumulator(acc: Any) -> Int64Array:
    """Clamp a sum to the int32 accumulator (section 2.1)."""
    return saturate(acc, qint32)


def accumulate_addend(acc: Any, codes: Any, m: Any, n: Any, wide: bool = False) -> Int64Array:
    """Add a fused operand: ``acc + rescale(codes, m, n)`` (section 2.4).

    int32 saturating: accumulator, addend and sum each. ``wide``: the 48-bit accumulator, which
    never saturates.
    """
    if wide:
        return np.asarray(acc, dtype=np.int64) + rescale(codes, m, n)
    addend = saturate_accumulator(rescale(codes, m, n))
    return saturate_accumulator(saturate_accumulator(acc) + addend)


def common_shift(Ms: Iterable[float], bits: int = MULTIPLIER_BITS) -> tuple[tuple[int, ...], int]:
    """Return ``((m_0, m_1, ...), n)``: integer multipliers of several operands over one shift.

    n comes from the largest multiplier (``bits``, normalised), the others are
    ``floor(abs(M_i) * 2**n + 0.5)`` with the sign of M_i; one may become 0.

    >>> common_shift([0.5, 0.25])
    ((16384, 8192), 15)
    """
    factors = [float(v) for v in Ms]
    if not factors:
        raise ArgumentError("common_shift needs at least one multiplier")
    _, n = multiplier_shift(max(abs(v) for v in factors), bits)
    return tuple(scaled_integer(v, n) for v in factors), n


def scaled_integer(value: float, n: int) -> int:
    """Return ``floor(abs(value) * 2**n + 0.5)`` with the sign of ``value``."""
    magnitude = math.floor(math.ldexp(abs(value), n) + 0.5)
    return magnitude if value >= 0 else -magnitude


def _fits_int64(acc: Int64Array, m: Int64Array, n: Int64Array) -> bool:
    if acc.size == 0:
        return True
    product = _magnitude(acc) * _magnitude(m)
    return product <= RESCALE_LIMIT and int(n.min()) >= 0 and int(n.max()) <= 62


def _fits_limbs(acc: Int64Array, m: Int64Array, n: Int64Array) -> bool:
    return (
        _magnitude(acc) <= 1 << 53
        and _magnitude(m) < 1 << HIGH_PRECISION_BITS
        and int(n.min()) > LIMB_BITS
    )


def _rescale_limbs(acc: Int64Array, m: Int64Array, n: Int64Array) -> Int64Array:
    """``acc = high * 2**24 + low``: both products fit, and half the last bit shifted out rounds."""
    high, low = acc >> LIMB_BITS, acc & ((1 << LIMB_BITS) - 1)
    total = high * m + ((low * m) >> LIMB_BITS)
    doubled = total >> np.minimum(n - 1 - LIMB_BITS, 63)
    return np.asarray((doubled + 1) >> 1)


def _magnitude(values: Int64Array) -> int:
    return max(-int(values.min()), int(values.max()))


def _rescale_one(acc: int, m: int, n: int) -> int:
    product = int(acc) * int(m)
    n = int(n)
    exact = (product + (1 << (n - 1))) >> n if n > 0 else product << -n
    return max(-RESCALE_LIMIT, min(RESCALE_LIMIT, exact))
