"""numerics.md section 3: lookup tables."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qtune.arith.quantize import quantize, scale_from_absmax
from qtune.arith.table import SEGMENT_COUNTS, int8_table, lookup, segment_table, table_error
from qtune.dtype import qint8, qint16
from qtune.errors import ArgumentError, NonFiniteError

FULL = (-32768, 32767)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def silu(x):
    return x * sigmoid(x)


def softplus(x):
    return np.logaddexp(x, 0)


def gelu_tanh(x):
    return 0.5 * x * (1 + np.tanh(0.7978845608 * (x + 0.044715 * x**3)))


def erf(x):
    """Abramowitz and Stegun 7.1.26: smooth enough to stand for erf."""
    t = 1 / (1 + 0.3275911 * np.abs(x))
    poly = t * (
        0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429)))
    )
    return np.sign(x) * (1 - poly * np.exp(-x * x))


def test_int8_table_has_the_quantized_function_at_every_code():
    table = int8_table(np.tanh, 0.05, 1 / 127.5)
    codes = np.arange(-128, 128)
    arguments = (codes.astype(np.float32) * np.float32(0.05)).astype(np.float64)
    np.testing.assert_array_equal(table, quantize(np.tanh(arguments), 1 / 127.5, qint8))


def test_int8_table_entries_round_half_up():
    """A21."""
    table = int8_table(lambda x: x / 2, 1.0, 1.0)
    assert [int(table[128 + q]) for q in (1, 3, 5, -1, -3, -5)] == [1, 2, 3, 0, -1, -2]


def test_int8_table_to_int16():
    table = int8_table(np.exp, 0.02, 1 / 1000, out=qint16)
    assert table[128] == 1000
    assert table.max() > 127


def test_undefined_codes_take_the_nearest_defined_entry():
    root = int8_table(np.sqrt, 0.1, 0.05)
    assert (root[:128] == root[128]).all()
    logarithm = int8_table(np.log, 0.1, 0.05)
    assert (logarithm[:129] == -128).all()


def test_a_function_without_values_is_refused():
    with pytest.raises(NonFiniteError, match="whole range"):
        int8_table(lambda x: x * np.nan, 0.1, 0.1)


@pytest.mark.parametrize("out_step", [2000, 32767.5, 40000])
def test_int16_sigmoid_is_close_monotone_and_not_zero(out_step):
    """A23: an output range of fewer than 16 bits must not empty the table."""
    table = segment_table(sigmoid, 8 / 32768, 1 / out_step, *FULL)
    codes = np.arange(FULL[0], FULL[1] + 1)
    values = lookup(table, codes)
    reference = quantize(sigmoid(codes * 8 / 32768), 1 / out_step, qint16)
    assert np.abs(values - reference).max() <= 1
    assert (np.diff(values) >= 0).all()
    assert abs(int(values[-1]) - min(round(sigmoid(8) * out_step), 32767)) <= 1


CASES = [
    (sigmoid, 6.0, FULL),
    (np.tanh, 4.0, FULL),
    (np.tanh, 30.0, FULL),
    (np.exp, 10.0, (-32768, 0)),
    (np.exp, 4.0, FULL),
    (silu, 8.0, FULL),
    (gelu_tanh, 5.0, (-20000, 32767)),
    (softplus, 12.0, FULL),
    (erf, 3.0, FULL),
]


@pytest.mark.parametrize(("f", "absmax", "span"), CASES)
@pytest.mark.parametrize("strategy", ["curvature", "mix"])
def test_smooth_functions_stay_within_one_step(f, absmax, span, strategy):
    """A23: sigmoid, tanh, exp, gelu, silu, softplus, erf."""
    s_x = float(scale_from_absmax(absmax, qint16))
    s_y = float(
        scale_from_absmax(np.abs(f(np.array([span[0] * s_x, span[1] * s_x]))).max(), qint16)
    )
    table = segment_table(f, s_x, s_y, *span, strategy=strategy)
    assert table.error <= 1
    assert table.segments in SEGMENT_COUNTS
    assert table.error == table_error(table, f, s_x, s_y)


@pytest.mark.parametrize(
    ("f", "lo", "scale_of_lo"),
    [
        (lambda x: 1 / x, 64, None),
        (lambda x: 1 / np.sqrt(x + 1e-5), 16, None),
        (np.log, 8, None),
        (np.sqrt, 0, 1.0),
    ],
    ids=["reciprocal", "rsqrt", "log", "sqrt"],
)
def test_steep_functions_stay_within_five_steps(f, lo, scale_of_lo):
    s_x = float(scale_from_absmax(2.0, qint16))
    top = scale_of_lo or float(np.abs(f(np.array([lo * s_x]))).max())
    s_y = float(scale_from_absmax(max(top, float(np.abs(f(np.array([2.0])))[0])), qint16))
    table = segment_table(f, s_x, s_y, lo, 32767)
    assert table.error <= 5


def test_segments_cover_the_range_without_gaps():
    table = segment_table(np.tanh, 1e-3, 1 / 32767.5, -7001, 9003)
    assert (table.first[0], table.last[-1]) == (-7001, 9003)
    np.testing.assert_array_equal(table.first[1:], table.last[:-1])
    assert (table.last > table.first).all()
    assert table.entries.shape == (table.segments, 64)


def test_codes_outside_the_range_take_the_value_at_its_end():
    table = segment_table(np.tanh, 1e-3, 1 / 32767.5, -500, 500)
    assert lookup(table, [-32768, -501]).tolist() == [int(lookup(table, [-500])[0])] * 2
    assert lookup(table, [501, 32767]).tolist() == [int(lookup(table, [500])[0])] * 2


@pytest.mark.parametrize("span", [(0, 0), (32767, 32767), (-32768, -32768), (5, 6), (5, 9)])
def test_short_ranges_are_exact(span):
    table = segment_table(np.exp, 1e-4, 1e-4, *span)
    codes = np.arange(span[0], span[1] + 1)
    exact = quantize(np.exp(codes * float(np.float32(1e-4))), 1e-4, qint16)
    np.testing.assert_array_equal(lookup(table, codes), exact)
    assert table.error == 0
    assert (table.last > table.first).all()


def test_values_saturate_after_interpolation():
    table = segment_table(lambda x: x * 4, 1.0, 1.0, *FULL)
    assert lookup(table, [32767, -32768, 8000]).tolist() == [32767, -32768, 32000]


def test_int8_output_of_an_int16_table():
    table = segment_table(sigmoid, 8 / 32768, 1 / 127.5, *FULL, out=qint8)
    assert table.error <= 1
    assert lookup(table, [32767], qint8).tolist() == [127]


def test_unknown_strategy_is_refused():
    with pytest.raises(ArgumentError, match="evenly, curvature, mix"):
        segment_table(np.tanh, 1.0, 1.0, 0, 10, strategy="best")


def test_codes_must_be_int16():
    with pytest.raises(ArgumentError, match="lo=5, hi=4"):
        segment_table(np.tanh, 1.0, 1.0, 5, 4)


def test_mix_is_the_better_of_both():
    arguments = (lambda x: 1 / x, 1e-3, 1 / 3276.75, 300, 32767)
    errors = {s: segment_table(*arguments, strategy=s).error for s in ("evenly", "curvature")}
    assert segment_table(*arguments).error == min(errors.values())


@settings(max_examples=40)
@given(
    lo=st.integers(-32768, 32767),
    width=st.integers(0, 65535),
    strategy=st.sampled_from(["evenly", "curvature", "mix"]),
)
def test_any_range_gives_increasing_segments_that_end_on_it(lo, width, strategy):
    hi = min(lo + width, 32767)
    table = segment_table(np.tanh, 1e-4, 1 / 32767.5, lo, hi, strategy=strategy)
    assert (table.last > table.first).all()
    assert table.segments <= 64
    if hi > lo:
        assert (table.first[0], table.last[-1]) == (lo, hi)
    assert table.error <= 1
