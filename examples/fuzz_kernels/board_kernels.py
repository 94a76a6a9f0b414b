"""Integer kernels as one writes them for a chip, the rules that they must follow, and slips."""

from __future__ import annotations

import math
from fractions import Fraction

import torch
from torch import Tensor

MULTIPLIER, SHIFT = 5, 6
"""``5 / 2**6``: the factor from an accumulator's scale to that of the output."""


def saturated(codes: Tensor) -> Tensor:
    """To qint8."""
    return codes.clamp(-128, 127).to(torch.int8)


def requantize(acc: Tensor) -> Tensor:
    """Accumulators of a GEMM to qint8: one multiply, one add, one shift."""
    return saturated((acc.long() * MULTIPLIER + (1 << (SHIFT - 1))) >> SHIFT)


def requantize_rule(acc: Tensor) -> Tensor:
    """The same in fractions, half up, element by element: slow and plain."""
    factor, half = Fraction(MULTIPLIER, 1 << SHIFT), Fraction(1, 2)
    exact = [math.floor(value * factor + half) for value in acc.flatten().tolist()]
    return saturated(torch.tensor(exact).reshape(acc.shape))


def average(a: Tensor, b: Tensor) -> Tensor:
    """The mean of two qint8 tensors, half up."""
    return ((a.short() + b.short() + 1) >> 1).to(torch.int8)


def average_rule(a: Tensor, b: Tensor) -> Tensor:
    """The same in float64, where it is exact."""
    return torch.floor((a.double() + b.double()) / 2 + 0.5)


def softsign(x: Tensor) -> Tensor:
    """``x / (1 + abs(x))``, for which the chip has no operator but a table."""
    return x / (1 + x.abs())


def requantize_without_rounding(acc: Tensor) -> Tensor:
    """Slip: the shift alone rounds down."""
    return saturated((acc.long() * MULTIPLIER) >> SHIFT)


def requantize_away_from_zero(acc: Tensor) -> Tensor:
    """Slip: ties of negative numbers go down, not up."""
    product = acc.long() * MULTIPLIER
    return saturated(product.sign() * ((product.abs() + (1 << (SHIFT - 1))) >> SHIFT))


def requantize_without_saturation(acc: Tensor) -> Tensor:
    """Slip: what does not fit into eight bits wraps around."""
    return ((acc.long() * MULTIPLIER + (1 << (SHIFT - 1))) >> SHIFT).to(torch.int8)


def average_in_eight_bits(a: Tensor, b: Tensor) -> Tensor:
    """Slip: the sum of two codes needs nine bits."""
    return (a + b + 1) >> 1


def atan_of_small_angles(x: Tensor) -> Tensor:
    """Slip: a formula that is good between -1 and 1."""
    return x / (1 + 0.28 * x * x)
