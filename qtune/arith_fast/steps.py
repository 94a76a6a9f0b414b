"""The arithmetic of one requantize block, in float64 or int64 (numerics.md sections 2.3 and 7)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from qtune.arith.requantize import RESCALE_LIMIT
from qtune.arith.requantize import rescale as numpy_rescale
from qtune.arith_fast.held import offset
from qtune.arith_fast.limbs import fits_limbs, rescale_limbs
from qtune.dtype import QuantDType

EXACT_DOUBLE = 1 << 53
"""Integers up to here are exact in float64."""

_INT16_REACH = 1 << 15
_INT32_REACH = (1 << 31) - 1


class Constants(NamedTuple):
    """int64 tensors of one shape: multiplier, shift and bias of every channel (or of all)."""

    m: torch.Tensor
    n: torch.Tensor
    bias: torch.Tensor

    def moved_by(self, amount: int) -> Constants:
        """Return the constants with ``amount`` added to every bias."""
        return Constants(self.m, self.n, self.bias + amount)


def int64_constants(m: Any, n: Any, bias: Any) -> Constants:
    """Return the three as flat int64 tensors of one length (1 or the number of channels)."""
    arrays = np.broadcast_arrays(*(np.array(v, dtype=np.int64).reshape(-1) for v in (m, n, bias)))
    return Constants(*(torch.from_numpy(np.array(a)) for a in arrays))


class DoubleStep:
    """``clamp(floor(acc * M + B))`` with ``M = m / 2**n``, ``B = bias * M + 0.5 + offset``."""

    def __init__(self, c: Constants, bound: int, lo: int, hi: int, out: QuantDType) -> None:
        m, n = _without_vanishing(c, bound)
        self.integers = Constants(m, n, c.bias)
        self.factor = torch.ldexp(m.double(), -n.clamp(-512, 512).double())
        self.addend = c.bias.double().mul(self.factor).add(offset(out) + 0.5)
        self.offset = offset(out)
        self.low, self.high = lo + self.offset, hi + self.offset
        extent = (self.factor.abs() * bound + self.addend.abs()).max()
        self.fits_int16 = float(extent) < _INT16_REACH
        self.fits_int32 = float(extent) < _INT32_REACH

    @staticmethod
    def is_exact(c: Constants, bound: int, out: QuantDType) -> bool:
        """Return whether all intermediates are multiples of one step with at most 53 bits.

        The step is ``2**-n``, or 0.5 (of the rounding term) where that is smaller.
        """
        m, n = _without_vanishing(c, bound)
        channels = zip(m.tolist(), n.tolist(), c.bias.tolist(), strict=True)
        return all(
            _steps((bound + abs(bias)) * abs(m_c), n_c, out) <= EXACT_DOUBLE
            for m_c, n_c, bias in channels
        )

    @staticmethod
    def work(shape: Sequence[int]) -> torch.Tensor:
        """Return a buffer for blocks of accumulators."""
        return torch.empty(tuple(shape), dtype=torch.float64)

    def run(self, acc: torch.Tensor, target: torch.Tensor, shape: list[int] | None = None) -> None:
        """Write the codes of ``acc`` (overwritten) to ``target``.

        The constants run along the last dimension, or take ``shape``.
        """
        addend, factor = self.addend, self.factor
        if shape is not None:
            addend, factor = addend.view(shape), factor.view(shape)
        torch.addcmul(addend, acc, factor, out=acc)
        if self.low < 0:
            target.copy_(acc.floor_().clamp_(self.low, self.high))
        elif self.fits_int16:
            # Truncation is floor from 0 up, and what it lifts to 0 is clamped there anyway.
            target.copy_(acc.to(torch.int16).clamp_(self.low, self.high))
        else:
            target.copy_(acc.clamp_(self.low, self.high + 0.5).to(torch.int16))


class IntegerStep:
    """``clamp(((acc + bias) * m + 2**(n-1)) >> n)`` in int64."""

    def __init__(self, c: Constants, bound: int, lo: int, hi: int, out: QuantDType) -> None:
        self.m, self.n, self.bias = c
        self.low, self.high, self.offset = lo, hi, offset(out)
        largest = (bound + int(c.bias.abs().max())) * int(c.m.abs().max())
        self._plain = largest <= RESCALE_LIMIT and bool((c.n >= 0).all())
        if self._plain:
            self.m, self.n, self._half = _right_shifts(c.m, c.n)

    @staticmethod
    def work(shape: Sequence[int]) -> torch.Tensor:
        """Return a buffer for blocks of accumulators."""
        return torch.empty(tuple(shape), dtype=torch.int64)

    def run(self, acc: torch.Tensor, target: torch.Tensor, shape: list[int] | None = None) -> None:
        """Write the codes of ``acc`` (overwritten) to ``target``, as ``DoubleStep.run``."""
        m, n, bias = self.m, self.n, self.bias
        half = self._half if self._plain else bias
        if shape is not None:
            m, n, bias, half = (v.view(shape) for v in (m, n, bias, half))
        acc.add_(bias)
        if self._plain:
            acc.mul_(m).add_(half).bitwise_right_shift_(n)
        else:
            narrow = self.low >= -_INT16_REACH and self.high < _INT16_REACH
            wide = rescale_limbs if narrow and fits_limbs(acc, m) else rescale
            acc.copy_(wide(acc, m, n))
        target.copy_(acc.clamp_(self.low, self.high).add_(self.offset))


def rescale(acc: torch.Tensor, m: Any, n: Any) -> torch.Tensor:
    """Return ``qtune.arith.requantize.rescale`` of an integer tensor, int64; m, n broadcast."""
    wide = acc.to(torch.int64)
    m_t, n_t = (torch.as_tensor(v, dtype=torch.int64) for v in (m, n))
    if not _product_fits(wide, m_t):
        return torch.from_numpy(numpy_rescale(wide.numpy(), m_t.numpy(), n_t.numpy()))
    left = (-n_t).clamp(0, 62)
    factor, right, half = _right_shifts(m_t, n_t)
    result = torch.bitwise_right_shift((wide * factor).add_(half), right)
    if bool((left > 0).any()):
        limit = torch.full_like(left, RESCALE_LIMIT) >> left
        result = torch.bitwise_left_shift(torch.clamp(result, -limit, limit), left)
    return result


def _right_shifts(
    m: torch.Tensor, n: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Multiplier, shift in 0 .. 62, rounding term. A product has at most 62 bits: beyond is 0."""
    right = n.clamp(0, 62)
    half = torch.where(right > 0, torch.ones_like(right) << (right - 1).clamp_min(0), 0)
    return torch.where(n > 62, 0, m), right, half


def _product_fits(acc: torch.Tensor, m: torch.Tensor) -> bool:
    return acc.numel() == 0 or _magnitude(acc) * _magnitude(m) <= RESCALE_LIMIT


def _magnitude(values: torch.Tensor) -> int:
    low, high = torch.aminmax(values)
    return max(-int(low), int(high))


def _steps(product: int, n: int, out: QuantDType) -> int:
    """``product / 2**n + offset + 0.5`` in steps of ``2**-n``, at most 0.5."""
    digits = max(n, 1)
    return (product << (digits - n)) + ((2 * offset(out) + 1) << (digits - 1))


def _without_vanishing(c: Constants, bound: int) -> tuple[torch.Tensor, torch.Tensor]:
    """m and n with the channels zeroed whose every result rounds to 0 (unused channels' shifts)."""
    extent = (c.bias.abs().double() + bound) * c.m.abs().double()
    vanishes = extent < torch.ldexp(torch.ones(()), c.n.clamp(-512, 512).double() - 1.5)
    return torch.where(vanishes, 0, c.m), torch.where(vanishes, 0, c.n)
