"""Multipliers in the precision of a conversion, and averages whose ties go up."""

from __future__ import annotations

from fractions import Fraction
from math import floor

import numpy as np
import pytest

from qtune.arith.requantize import multiplier_shift
from qtune.dtype import qint8, qint16
from qtune.ops.elementwise.scaling import CommonShift, shared, single
from qtune.ops.quant.precision import (
    average_multipliers,
    multiplier,
    multipliers,
    multipliers_over_shift,
)
from tests.ops.gemm.eager import EagerContext, run_all

USUAL = EagerContext()
HIGH = EagerContext(level=1, high_precision_qpp=True)


def value(m: int, n: int) -> Fraction:
    return Fraction(int(m)) / Fraction(2) ** int(n)


@pytest.mark.parametrize("factor", [0.3, -1.7, 1e-9, 12345.6, 0.1 / 0.20284509658813477])
def test_usual_multipliers_have_15_bits_and_high_ones_31(factor: float) -> None:
    assert multiplier(USUAL, factor) == multiplier_shift(factor, 15)
    assert multiplier(HIGH, factor) == multiplier_shift(factor, 31)


@pytest.mark.parametrize("exponent", [-40, -16, -1, 0, 1, 20])
def test_powers_of_two_stay_short(exponent: int) -> None:
    """Exact shifts: the value is the same and the requantize as cheap as the usual one."""
    assert multiplier(HIGH, 2.0**exponent) == (1 << 14, 14 - exponent)
    assert value(*multiplier(HIGH, 3 * 2.0**exponent)) == Fraction(3) * Fraction(2) ** exponent


def test_nothing_and_what_saturates_stay_short() -> None:
    assert multiplier(HIGH, 0.0) == (0, 0)
    assert multiplier(HIGH, 3e9) == multiplier_shift(3e9, 15)


def test_channels_differ_in_length() -> None:
    m, n = multipliers(HIGH, np.array([0.5, 0.3, 0.0]))
    assert (m[0], n[0]) == (1 << 14, 15)
    assert (m[1], n[1]) == multiplier_shift(0.3, 31)
    assert (m[2], n[2]) == (0, 0)


def test_shift_of_a_sum_is_bounded() -> None:
    m, n = multipliers(HIGH, np.array([1e-8, 0.3]), largest_shift=46)
    assert n.tolist() == [46, 32]
    assert abs(float(value(m[0], n[0])) - 1e-8) < 2.0**-46
    ms, shift = multipliers_over_shift(HIGH, [1e-9, 1e-12])
    assert shift == 46
    # half a step of the shift's last bit
    np.testing.assert_allclose(np.ldexp(np.float64(ms), -46), [1e-9, 1e-12], rtol=0, atol=2.0**-47)


def test_operands_of_a_sum_share_a_long_or_a_short_shift() -> None:
    ms, n = multipliers_over_shift(HIGH, [0.3, 0.001])
    assert (ms[0], n) == multiplier_shift(0.3, 31)
    assert ms[1] == floor(0.001 * 2**n + 0.5)
    assert multipliers_over_shift(HIGH, [0.5, 0.125]) == ((1 << 14, 1 << 12), 15)
    assert shared(HIGH, [(0.5, qint8), (0.25, qint8)]) == CommonShift((1 << 14, 1 << 13), 15)
    assert shared(HIGH, [(0.3, qint8), (0.25, qint16)]).n == 32


def test_large_sums_take_bits_off_the_multiplier() -> None:
    assert single(HIGH, 0.3, sum_bits=40).m[0].bit_length() == 21
    assert single(HIGH, 0.3).m[0].bit_length() == 31


@pytest.mark.parametrize("count", [9, 49, 12, 25, 289])
@pytest.mark.parametrize("exponent", [-4, -1, 0, 1, 3, 6])
def test_averages_round_like_real_arithmetic(count: int, exponent: int) -> None:
    """Every sum, both signs, ties included: half up."""
    ratio = 2.0**exponent
    m, n, raised = average_multipliers(HIGH, ratio, count, 128 * count)
    sums = np.arange(-128 * count, 127 * count + 1)
    real = [floor(Fraction(int(s)) * Fraction(ratio) / count + Fraction(1, 2)) for s in sums]
    moved = 64 * sums + 1 if raised else sums
    got = [floor(value(int(v) * int(m), n) + Fraction(1, 2)) for v in moved]
    assert got == real


def test_averages_of_the_usual_precision_are_not_raised() -> None:
    m, n, raised = average_multipliers(USUAL, 0.5, 49, 128 * 49)
    assert ((int(m), int(n)), raised) == (multiplier_shift(0.5 / 49, 15), False)


@pytest.mark.parametrize("dtype", ["int8", "int16"])
def test_raised_averages_agree_everywhere(dtype: str) -> None:
    """QAvgPoolUp and QReduceSumUp: reference, fast kernel, ONNX Runtime."""
    rng = np.random.default_rng(0)
    bits = 8 * np.dtype(dtype).itemsize
    x = rng.integers(-(1 << (bits - 1)), 1 << (bits - 1), (2, 3, 7, 5)).astype(dtype)
    m, n, raised = average_multipliers(HIGH, 0.5, 35, 35 << (bits - 1))
    assert raised
    attrs = {"lo": -(1 << (bits - 1)), "hi": (1 << (bits - 1)) - 1, "to": 3 if bits == 8 else 5}
    bounds = [np.array([0]), np.array([7]), np.array([0]), np.array([5])]
    pool = run_all("QAvgPoolUp", [x, *bounds, m, n], attrs, [1, 2, 3, 4, 5, 6])
    reduction = {"axes": (2, 3), "keepdims": 1, **attrs}
    mean = run_all("QReduceSumUp", [x, m, n], reduction, [1, 2])
    sums = x.astype(np.int64).sum((2, 3), keepdims=True)
    real = [floor(Fraction(int(s), 70) + Fraction(1, 2)) for s in sums.ravel()]
    assert pool.ravel().tolist() == mean.ravel().tolist() == real
