"""numerics.md section 3, row resize."""

from fractions import Fraction
from math import floor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qtune.arith.resize import bilinear_taps, nearest_index

SIZES = st.integers(1, 300)


def test_nearest_uses_integer_positions():
    assert nearest_index(3, 5).tolist() == [0, 0, 1, 1, 2]
    assert nearest_index(5, 3).tolist() == [0, 1, 3]
    assert nearest_index(4, 4).tolist() == [0, 1, 2, 3]


def test_centered_nearest_takes_the_middle_of_the_output_element():
    assert nearest_index(3, 5, centered=True).tolist() == [0, 0, 1, 2, 2]
    assert nearest_index(5, 3, centered=True).tolist() == [0, 2, 4]
    assert nearest_index(4, 2, centered=True).tolist() == [1, 3]


def test_bilinear_doubles_with_quarter_weights():
    first, second, weight = bilinear_taps(2, 4)
    assert first.tolist() == [0, 0, 0, 1]
    assert second.tolist() == [1, 1, 1, 1]
    assert weight.tolist() == [0, 64, 192, 0]


def test_align_corners_meets_both_ends():
    first, second, weight = bilinear_taps(5, 9, align_corners=True)
    assert weight.tolist() == [0, 128] * 4 + [0]
    assert (int(first[-1]), int(second[-1])) == (4, 4)
    assert bilinear_taps(5, 1, align_corners=True)[0].tolist() == [0]


@given(SIZES, SIZES, st.booleans())
def test_taps_follow_the_rule_in_rational_numbers(in_size, out_size, align):
    first, second, weight = bilinear_taps(in_size, out_size, align)
    for o in range(out_size):
        if align:
            position = Fraction(o * (in_size - 1), max(out_size - 1, 1))
        else:
            position = Fraction((2 * o + 1) * in_size - out_size, 2 * out_size)
        fixed = floor(position * 65536 + Fraction(1, 2))
        fixed = min(max(fixed, 0), (in_size - 1) * 65536)
        assert first[o] == fixed // 65536
        assert second[o] == min(fixed // 65536 + 1, in_size - 1)
        assert weight[o] == (fixed % 65536 + 128) // 256


@pytest.mark.parametrize(("in_size", "scale", "out_size"), [(32, 1.3, 41)])
def test_published_size_of_a_fractional_scale(in_size, scale, out_size):
    """bilinear x1.3 of 32 is 41; the step is 32 / 41, not 1 / 1.3."""
    assert floor(in_size * scale) == out_size
    first, _, weight = bilinear_taps(in_size, out_size)
    exact = Fraction(81 * 32 - 41, 82)  # the last position
    assert first[-1] + Fraction(int(weight[-1]), 256) == pytest.approx(
        float(exact), abs=1 / 256
    ) or (first[-1] == 31)
