"""numerics.md section 2.3 and the common shift of section 3."""

from fractions import Fraction
from math import floor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qtune.arith.requantize import (
    RESCALE_LIMIT,
    accumulate_addend,
    common_shift,
    multiplier_shift,
    multipliers_shifts,
    requantize,
    rescale,
    saturate_accumulator,
)
from qtune.dtype import qint8, qint16, qint32
from qtune.errors import ArgumentError

INT32 = st.integers(-(2**31), 2**31 - 1)
INT48 = st.integers(-(2**47), 2**47 - 1)


def exact_rescale(acc, m, n):
    """The rule in rational numbers."""
    value = Fraction(acc) * m * Fraction(2) ** -n
    rounded = floor(value + Fraction(1, 2))
    return max(-RESCALE_LIMIT, min(RESCALE_LIMIT, rounded))


def test_published_multiplier():
    assert multiplier_shift(0.1 * 1.0 / 0.20284509658813477) == (32308, 16)


def test_multiplier_is_normalised_when_it_rounds_up_to_a_power_of_two():
    below_one = 1.0 - 2.0**-20
    assert multiplier_shift(below_one) == (1 << 14, 14)
    assert multiplier_shift(1.0) == (1 << 14, 14)


def test_negative_multiplier_takes_the_sign_after_rounding():
    for value in (0.3, 0.49999, 12345.678):
        m, n = multiplier_shift(value)
        assert multiplier_shift(-value) == (-m, n)


def test_zero_multiplier_gives_zero():
    assert multiplier_shift(0.0) == (0, 0)
    assert requantize([12345], 0, 0, qint8).tolist() == [0]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_multiplier_must_be_finite(bad):
    with pytest.raises(ArgumentError, match="finite"):
        multiplier_shift(bad)


@given(st.floats(1e-300, 1e300), st.sampled_from([15, 31]))
def test_multiplier_is_the_nearest_of_its_width(value, bits):
    m, n = multiplier_shift(value, bits)
    assert 2 ** (bits - 1) <= m < 2**bits
    error = abs(Fraction(value) - Fraction(m) * Fraction(2) ** -n)
    assert error <= Fraction(2) ** -n / 2


def test_multipliers_of_an_array_keep_its_shape():
    m, n = multipliers_shifts([[0.5, 0.25], [1.0, 3.0]])
    assert m.shape == n.shape == (2, 2)
    assert (m[0, 1], n[0, 1]) == multiplier_shift(0.25)


def test_one_rounding_only():
    """A22: rounding twice would give 75."""
    assert rescale([7860], 1302661570, 37).tolist() == [74]


@given(
    st.lists(INT32, min_size=1, max_size=8),
    st.integers(2**30, 2**31 - 1),
    st.integers(32, 45),
)
def test_rescale_by_31_bits_equals_rational_arithmetic(accs, m, n):
    """A22."""
    assert rescale(accs, m, n).tolist() == [exact_rescale(a, m, n) for a in accs]


@given(
    st.lists(INT32, min_size=1, max_size=8),
    st.integers(2**14, 2**15 - 1),
    st.sampled_from([1, -1]),
    st.integers(-70, 70),
)
def test_rescale_of_int32_equals_rational_arithmetic(accs, m, sign, n):
    assert rescale(accs, sign * m, n).tolist() == [exact_rescale(a, sign * m, n) for a in accs]


@given(
    st.lists(INT48, min_size=1, max_size=8),
    st.one_of(st.integers(2**14, 2**15 - 1), st.integers(2**30, 2**31 - 1)),
    st.integers(-10, 90),
)
def test_rescale_of_48_bits_equals_rational_arithmetic(accs, m, n):
    assert rescale(accs, m, n).tolist() == [exact_rescale(a, m, n) for a in accs]


def test_ties_round_upwards():
    """A21."""
    halves = [1, 3, 5, -1, -3, -5]
    assert rescale(halves, 1 << 14, 15).tolist() == [1, 2, 3, 0, -1, -2]


@pytest.mark.parametrize(
    ("bits", "m_bits", "n"), [(31, 15, 47), (31, 31, 63), (47, 15, 63), (47, 31, 79)]
)
def test_long_shifts_give_zero(bits, m_bits, n):
    extremes = [-(2**bits), 2**bits - 1, 0]
    m = 2**m_bits - 1
    assert rescale(extremes, m, n).tolist() == [0, 0, 0]
    assert rescale(extremes, -m, n).tolist() == [0, 0, 0]
    assert rescale(extremes, m, n - 2).tolist() != [0, 0, 0]


def test_shift_zero_has_no_rounding_term():
    assert rescale([3, -3], 16384, 0).tolist() == [49152, -49152]


def test_negative_shift_goes_left_and_saturates():
    assert requantize([1, -1, 0], 16384, -40, qint16).tolist() == [32767, -32768, 0]
    assert rescale([1, -1, 0], 16384, -400).tolist() == [RESCALE_LIMIT, -RESCALE_LIMIT, 0]


def test_requantize_saturates_after_rounding():
    assert requantize([255, -257, 256], 1 << 14, 15, qint8).tolist() == [127, -128, 127]
    assert requantize([254, 253], 1 << 14, 15, qint8).tolist() == [127, 127]


def test_multipliers_broadcast_along_channels():
    acc = np.arange(12).reshape(1, 3, 2, 2) * 100
    m = np.array([16384, 20000, 30000]).reshape(1, 3, 1, 1)
    n = np.array([15, 16, -1]).reshape(1, 3, 1, 1)
    whole = rescale(acc, m, n)
    for channel in range(3):
        expected = rescale(acc[:, channel], m[0, channel, 0, 0], n[0, channel, 0, 0])
        np.testing.assert_array_equal(whole[:, channel], expected)


def test_rescale_of_nothing():
    assert rescale(np.zeros((0, 3)), 5, 3).shape == (0, 3)


def test_common_shift_takes_the_largest():
    multipliers, n = common_shift([0.3, -1.7, 1e-9])
    assert (abs(multipliers[1]), n) == multiplier_shift(1.7)
    assert multipliers[1] < 0
    assert multipliers[0] == floor(0.3 * 2**n + 0.5)
    assert multipliers[2] == 0


def test_common_shift_uses_the_renormalised_shift():
    multipliers, n = common_shift([1.0 - 2.0**-20, 0.5])
    assert (multipliers, n) == ((1 << 14, 1 << 13), 14)


def test_common_shift_of_nothing_is_refused():
    with pytest.raises(ArgumentError, match="at least one"):
        common_shift([])


def test_accumulator_saturates_to_int32():
    values = [2**31, -(2**31) - 1, 5]
    assert saturate_accumulator(values).tolist() == [qint32.qmax, qint32.qmin, 5]


def test_fused_addend_is_rescaled_half_up_and_saturates():
    """numerics.md section 2.4."""
    m, n = multiplier_shift(0.5)
    assert accumulate_addend([10, 10, 10], [1, 3, -1], m, n).tolist() == [11, 12, 10]
    assert accumulate_addend([2**31 - 1], [1], m, n).tolist() == [2**31 - 1]
    assert accumulate_addend([2**31 - 1], [1], m, n, wide=True).tolist() == [2**31]
