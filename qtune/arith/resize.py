"""Source positions of resize in integers (numerics.md section 3, row "resize")."""

from __future__ import annotations

import numpy as np

from qtune.arith.rounding import Int64Array

COORDINATE_BITS = 16
"""Fraction bits of a source coordinate."""

WEIGHT_BITS = 8
"""Fraction bits of a bilinear weight: weights count in 256ths."""


def nearest_index(in_size: int, out_size: int, centered: bool = False) -> Int64Array:
    """Return the source index ``(o * in) // out`` of every output position, int64 [out].

    ``centered`` (torch's "nearest-exact") takes the middle of the output element:
    ``((2 o + 1) * in) // (2 out)``.

    >>> nearest_index(3, 5).tolist(), nearest_index(3, 5, centered=True).tolist()
    ([0, 0, 1, 1, 2], [0, 0, 1, 2, 2])
    """
    out = np.arange(out_size, dtype=np.int64)
    if centered:
        return (2 * out + 1) * in_size // (2 * out_size)
    return out * in_size // out_size


def bilinear_taps(
    in_size: int, out_size: int, align_corners: bool = False
) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Return ``(i0, i1, w1)``: two source indices and the weight of the second, in 256ths.

    The weight of the first is ``256 - w1``. int64 [out] each.
    """
    coordinate = np.clip(_coordinate(in_size, out_size, align_corners), 0, (in_size - 1) << 16)
    first = coordinate >> COORDINATE_BITS
    fraction = coordinate & ((1 << COORDINATE_BITS) - 1)
    weight = (fraction + (1 << (COORDINATE_BITS - WEIGHT_BITS - 1))) >> (
        COORDINATE_BITS - WEIGHT_BITS
    )
    return first, np.minimum(first + 1, in_size - 1), weight


def _coordinate(in_size: int, out_size: int, align_corners: bool) -> Int64Array:
    out = np.arange(out_size, dtype=np.int64)
    one = np.int64(1 << COORDINATE_BITS)
    if align_corners:
        return _divide_half_up(out * (in_size - 1) * one, max(out_size - 1, 1))
    return _divide_half_up((2 * out + 1) * in_size * one - out_size * one, 2 * out_size)


def _divide_half_up(numerator: Int64Array, denominator: int) -> Int64Array:
    """``floor(numerator / denominator + 0.5)`` in integers."""
    return (2 * numerator + denominator) // (2 * denominator)
