"""Multipliers in the precision of a conversion: 15 bits, or 31 (numerics.md sections 2.3 and 4).

Every integer rule gets its multipliers here, never from ``qtune.arith`` directly: so each
requantize follows the consistency level. With ``ctx.high_precision_qpp`` multipliers have 31 bits,
but for two kinds that keep 15: those that 15 bits hold exactly (powers of two, as nearly all are
from level 2 on; the value is the same and the requantize as cheap as the usual one), and factors
from 2**31 on, which saturate every output.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from qtune.arith.requantize import (
    HIGH_PRECISION_BITS,
    MULTIPLIER_BITS,
    TIE_BITS,
    common_shift,
    multipliers_shifts,
    scaled_integer,
)
from qtune.arith.rounding import Int64Array

if TYPE_CHECKING:
    from qtune.ops.kernel import ConvertContext

SUM_SHIFT = 46
"""Largest shift where something on the grid ``2**-n`` is added: int64 then holds every sum. Factors
below 2**-15 lose bits of their 31 there, which is less than 2**-31 of an output step per code."""

_PRODUCT_BITS = 61


def multiplier_bits(ctx: ConvertContext) -> int:
    """Bits of this conversion's multipliers: 15, or 31."""
    return HIGH_PRECISION_BITS if ctx.high_precision_qpp else MULTIPLIER_BITS


def multiplier(ctx: ConvertContext, M: float, sum_bits: int = 30) -> tuple[int, int]:
    """Return ``(m, n)`` with ``M = m / 2**n``.

    ``sum_bits``: bits of the largest magnitude it multiplies; a sum of more than 30 takes bits off
    a long multiplier, so that the product stays below 2**61.
    """
    m, n = multipliers(ctx, M, bits=min(multiplier_bits(ctx), _PRODUCT_BITS - sum_bits))
    return int(m), int(n)


def multipliers(
    ctx: ConvertContext, M: Any, *, bits: int | None = None, largest_shift: int | None = None
) -> tuple[Int64Array, Int64Array]:
    """Return the int64 arrays ``m`` and ``n`` of every factor in ``M``, in its shape.

    ``largest_shift`` bounds the shifts of long multipliers (see ``SUM_SHIFT``).
    """
    m, n = multipliers_shifts(M, MULTIPLIER_BITS)
    if not ctx.high_precision_qpp:
        return m, n
    long_m, long_n = multipliers_shifts(M, bits or multiplier_bits(ctx))
    if largest_shift is not None:
        factors = np.asarray(M, dtype=np.float64)
        capped = [scaled_integer(float(v), largest_shift) for v in factors.ravel()]
        over = long_n > largest_shift
        long_m = np.where(over, np.array(capped, dtype=np.int64).reshape(m.shape), long_m)
        long_n = np.where(over, largest_shift, long_n)
    short = _same_value(m, n, long_m, long_n) | (long_n < 0)
    return np.where(short, m, long_m), np.where(short, n, long_n)


def average_multipliers(
    ctx: ConvertContext, ratio: float, count: Any, largest: int
) -> tuple[Int64Array, Int64Array, bool]:
    """Return ``m``, ``n`` of ``ratio / count``, and whether to requantize ``64 * sum + 1``.

    From level 1 on scales are powers of two, so averages of 49 codes, say, hit exact ties, and the
    rounding of ``m`` would send them up or down. The 64th of an accumulator step decides them
    upwards, as real arithmetic does, and changes nothing else (numerics.md section 4).
    ``ratio``: the input's scale in output scales. ``largest``: the largest magnitude of a sum.
    """
    counts = np.asarray(count, dtype=np.float64)
    bits = min(multiplier_bits(ctx), _PRODUCT_BITS - TIE_BITS - largest.bit_length())
    m, n = multipliers(ctx, ratio / counts, bits=bits)
    middle = counts / (2 * ratio)
    has_ties = (middle == np.floor(middle)) & (np.ldexp(m.astype(np.float64), -n) * counts != ratio)
    is_precise = largest.bit_length() + TIE_BITS <= bits and int(n.max()) <= _PRODUCT_BITS
    if (ctx.level or 0) < 1 or not has_ties.any() or not is_precise:
        return m, n, False
    return m, np.asarray(n + TIE_BITS), True


def multipliers_over_shift(ctx: ConvertContext, Ms: Iterable[float]) -> tuple[tuple[int, ...], int]:
    """Return ``((m_0, m_1, ...), n)``: multipliers of several operands over one shift."""
    factors = list(Ms)
    m, n = common_shift(factors)
    if not ctx.high_precision_qpp:
        return m, n
    long_m, long_n = common_shift(factors, multiplier_bits(ctx))
    if long_n > SUM_SHIFT:
        long_m, long_n = tuple(scaled_integer(v, SUM_SHIFT) for v in factors), SUM_SHIFT
    pairs = zip(m, long_m, strict=True)
    is_short = long_n < 0 or all(v << max(long_n - n, 0) == w for v, w in pairs)
    return (m, n) if is_short and n <= SUM_SHIFT else (long_m, long_n)


def _same_value(m: Int64Array, n: Int64Array, long_m: Int64Array, long_n: Int64Array) -> Any:
    """Where ``m / 2**n`` and ``long_m / 2**long_n`` are equal; the second has at most 31 bits."""
    return (m << np.clip(long_n - n, 0, 62 - MULTIPLIER_BITS)) == long_m
