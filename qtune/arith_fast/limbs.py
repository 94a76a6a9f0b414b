"""Rescale of wide accumulators in torch: 48 bits times 31 in two limbs of int64 (numerics.md 2.3).

Equal to ``qtune.arith.requantize.rescale`` in every bit.
"""

from __future__ import annotations

import torch

from qtune.arith.requantize import HIGH_PRECISION_BITS, LIMB_BITS, RESCALE_LIMIT

LARGEST = 1 << 53
"""Accumulators up to here, far beyond 48 bits, are taken."""

_PRODUCT = 1 << 61


def fits_limbs(acc: torch.Tensor, m: torch.Tensor) -> bool:
    """Return whether :func:`rescale_limbs` takes these."""
    if acc.numel() == 0 or m.numel() == 0:
        return True
    return _magnitude(acc) <= LARGEST and _magnitude(m) < 1 << HIGH_PRECISION_BITS


def rescale_limbs(acc: torch.Tensor, m: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    """Return ``(acc * m + 2**(n-1)) >> n``, int64; all three int64, m and n broadcast.

    ``acc = high * 2**24 + low``, so that both products fit and the last bit shifted out rounds. For
    n <= 24 there is one limb, and products beyond 2**61 are cut: far beyond 16 bits, with the right
    sign, so that saturated codes are the same.
    """
    is_long = n > LIMB_BITS
    near = torch.where(is_long, LARGEST, _PRODUCT // m.abs().clamp_min(1))
    value = torch.clamp(acc, -near, near)
    bits = torch.where(is_long, LIMB_BITS, 0)
    high = value >> bits
    low = value - (high << bits)
    total = high * m + ((low * m) >> bits)
    rest = n - bits
    doubled = total >> (rest - 1).clamp(0, 63)
    down = torch.where(rest > 0, (doubled + 1) >> 1, total)
    left = (-rest).clamp(0, 62)
    limit = torch.full_like(left, RESCALE_LIMIT) >> left
    return torch.clamp(down, -limit, limit) << left


def _magnitude(values: torch.Tensor) -> int:
    low, high = torch.aminmax(values)
    return max(-int(low), int(high))
