"""What a user may ask of the segments of an int16 table (numerics.md section 3)."""

from __future__ import annotations

import numpy as np
import pytest

from qtune.arith.quantize import quantize
from qtune.arith.segments import SegmentOptions, segment_table_by
from qtune.arith.table import lookup, segment_table
from qtune.dtype import qint8, qint16
from qtune.errors import ArgumentError

STEP = 1 / 4096  # of the input: the codes reach from -8 to 8
Y = 1 / 32768
CODES = np.arange(-32768, 32768)


def exact(f, s_y, codes=CODES):
    return quantize(f(codes * STEP), s_y, qint16)


def test_without_options_it_is_the_plain_table():
    plain = segment_table(np.tanh, STEP, Y, -9000, 30000)
    free = segment_table_by(SegmentOptions(), np.tanh, STEP, Y, -9000, 30000)
    assert np.array_equal(free.first, plain.first)
    assert np.array_equal(free.entries, plain.entries)
    evenly = segment_table_by(SegmentOptions("evenly"), np.tanh, STEP, Y, -9000, 30000)
    assert len(set(np.diff(evenly.first).tolist())) <= 2  # lengths differ by rounding alone


def test_dividing_points_are_the_upper_bounds_of_the_segments():
    options = SegmentOptions(dividing_points=(-2.0, -1.0, 0.0, 0.5, 6.0))
    table = segment_table_by(options, np.tanh, STEP, Y, -16384, 32767)
    assert (table.first / 4096).tolist() == [-4.0, -2.0, -1.0, 0.0, 0.5]
    assert (table.last / 4096).tolist() == [-2.0, -1.0, 0.0, 0.5, 6.0]
    at_the_end = int(exact(np.tanh, Y, np.array([6 * 4096]))[0])
    assert lookup(table, [32767]).tolist() == [at_the_end]
    assert table.error == np.abs(lookup(table, CODES) - exact(np.tanh, Y))[16384:57345].max()


def test_dividing_points_below_the_range_are_left_out():
    options = SegmentOptions(dividing_points=(-5.0, -3.0, 1.0, 2.0))
    table = segment_table_by(options, np.tanh, STEP, Y, 0, 32767)
    assert (table.first / 4096).tolist() == [0.0, 1.0]
    with pytest.raises(ArgumentError, match="begins at 4"):
        segment_table_by(options, np.tanh, STEP, Y, 16384, 32767)


def test_input_range_takes_the_place_of_the_observed_one():
    options = SegmentOptions(input_range=(-1.0, 2.0))
    table = segment_table_by(options, np.tanh, STEP, Y, -100, 100)
    assert (table.first[0], table.last[-1]) == (-4096, 8192)
    assert table.error <= 1


@pytest.mark.parametrize(
    ("mode", "f", "sign"), [("centrosymmetric", np.tanh, -1), ("axisymmetric", np.cos, 1)]
)
def test_a_symmetric_table_is_the_mirror_image_of_its_half(mode, f, sign):
    table = segment_table_by(SegmentOptions(symmetric_mode=mode), f, STEP, Y, -20000, 12000)
    assert (table.first[0], table.last[-1]) == (-20000, 20000)
    assert np.array_equal(table.first[1:], table.last[:-1])
    half = table.segments // 2
    assert np.array_equal(table.entries[:half], sign * table.entries[half:][::-1, ::-1])
    codes = np.arange(20001)
    # half a step is rounded up on both sides of 0
    assert np.abs(lookup(table, -codes) - sign * lookup(table, codes)).max() <= 1
    assert table.error <= 1


def test_the_error_says_where_a_function_has_not_the_symmetry_it_was_given():
    options = SegmentOptions(symmetric_mode="centrosymmetric")
    table = segment_table_by(options, np.exp, STEP, 1 / 4000, -4096, 4096)
    # exp(-1) at the lower end, its mirror image has -exp(1); each rounds by half a step
    assert abs(table.error - 2 * np.cosh(1) * 4000) <= 1


def test_inverse_func_leaves_out_inputs_whose_results_saturate():
    options = SegmentOptions(inverse_func=lambda y: 1 / y)
    table = segment_table_by(options, lambda x: 1 / x, STEP, 2 / 32767, 1, 32767)
    assert table.first[0] == 2049  # 1 / 2048 steps is just above the output's largest value, 2
    assert table.last[-1] == 32767
    at_the_end = int(quantize(1 / (2049 * STEP), 2 / 32767, qint16))
    assert lookup(table, [-5, 1, 2048]).tolist() == [at_the_end] * 3
    inside = np.arange(2049, 32768)
    found = np.abs(lookup(table, inside) - quantize(1 / (inside * STEP), 2 / 32767, qint16))
    assert found.max() <= 1


def test_inverse_func_may_end_the_range_above_too():
    """-x reaches both ends of the output's grid."""
    options = SegmentOptions(inverse_func=lambda y: -y)
    table = segment_table_by(options, lambda x: -x, STEP, 1 / 100, -32768, 32767, qint8)
    assert (table.first[0], table.last[-1]) == (-5201, 5242)  # -1.27 and 1.28


def test_an_inverse_that_leaves_nothing_is_refused():
    options = SegmentOptions(inverse_func=np.exp)
    with pytest.raises(ArgumentError, match="inverse of a decreasing function"):
        segment_table_by(options, np.log, STEP, 1e-3, 1, 32767)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"strategy": "best"}, "'evenly', 'curvature', 'mix'; got 'best'"),
        ({"symmetric_mode": "odd"}, "'centrosymmetric', 'axisymmetric'; got 'odd'"),
        ({"input_range": (2.0, 2.0)}, "low < high"),
        ({"input_range": (0.0, float("inf"))}, "low < high"),
        ({"input_range": (0.0, 1.0, 2.0)}, "low < high"),
        ({"dividing_points": ()}, "1 to 64 rising"),
        ({"dividing_points": (1.0, 1.0)}, "1 to 64 rising"),
        ({"dividing_points": tuple(float(i) for i in range(65))}, "1 to 64 rising"),
        ({"inverse_func": 3}, "function of a tensor, got 3"),
        ({"inverse_func": abs, "input_range": (0.0, 1.0)}, "pass one of them"),
        ({"inverse_func": abs, "symmetric_mode": "axisymmetric"}, "decreasing function"),
        (
            {"symmetric_mode": "axisymmetric", "dividing_points": (-1.0, 1.0)},
            "start above 0, got -1.0",
        ),
    ],
)
def test_options_without_meaning_are_refused(options, words):
    with pytest.raises(ArgumentError, match=words):
        SegmentOptions(**options)
