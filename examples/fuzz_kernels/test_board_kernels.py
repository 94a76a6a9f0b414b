"""Kernels and tables against their rules, on drawn examples; each slip must be found."""

from __future__ import annotations

import board_kernels as kernels
import pytest
import torch
from hypothesis import strategies as st

from qtune.nn import SegmentLUT
from qtune.testing import fuzz
from qtune.testing.strategies import accumulators, scales, shapes

TIES = st.integers(-50, 50).map(lambda n: torch.tensor([32 * n]))  # 32 * 5 / 2**6 is 2.5
SUMS = [TIES | accumulators(shapes(), bits=12)]  # 12 bits of sums fill the 8 bits of the result
PAIRS = ["qint8", "qint8"]  # codes of one shape
GRIDS = [scales(-8, -3).map(lambda scale: torch.arange(-128, 128) * scale)]  # all codes


def slip(reason):
    """A test that fuzzing must make fail."""
    return pytest.mark.xfail(strict=True, raises=AssertionError, reason=reason)


test_requantize = fuzz(against=kernels.requantize_rule, inputs=SUMS)(kernels.requantize)
test_average = fuzz(against=kernels.average_rule, inputs=PAIRS)(kernels.average)
test_softsign_table = fuzz(against=kernels.softsign, inputs=GRIDS)(SegmentLUT(kernels.softsign))


@slip("rounds down")
@fuzz(against=kernels.requantize_rule, inputs=SUMS)
def test_requantize_without_rounding(acc):
    return kernels.requantize_without_rounding(acc)


@slip("rounds ties of negative numbers down")
@fuzz(against=kernels.requantize_rule, inputs=SUMS)
def test_requantize_away_from_zero(acc):
    return kernels.requantize_away_from_zero(acc)


@slip("wraps around")
@fuzz(against=kernels.requantize_rule, inputs=SUMS)
def test_requantize_without_saturation(acc):
    return kernels.requantize_without_saturation(acc)


@slip("sums in eight bits")
@fuzz(against=kernels.average_rule, inputs=PAIRS)
def test_average_in_eight_bits(a, b):
    return kernels.average_in_eight_bits(a, b)


test_table_of_small_angles = slip("wrong beyond 1")(
    fuzz(against=torch.atan, inputs=GRIDS)(SegmentLUT(kernels.atan_of_small_angles))
)
