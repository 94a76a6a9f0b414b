"""numerics.md sections 1 and 6: quantize, fake-quantize, scales."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qtune.arith.quantize import (
    dequantize,
    fake_quantize,
    in_range,
    power_of_two_scale,
    quantize,
    scale_from_absmax,
    scale_from_threshold,
)
from qtune.dtype import qint4, qint8, qint16
from qtune.errors import ArgumentError, NonFiniteError

F32 = np.float32


def test_ties_are_half_up_in_quantize_and_fake_quantize():
    """A21."""
    ties = F32([0.5, 1.5, 2.5, -0.5, -1.5, -2.5])
    assert quantize(ties, 1.0, qint8).tolist() == [1, 2, 3, 0, -1, -2]
    assert fake_quantize(ties, 1.0, qint8).tolist() == [1, 2, 3, 0, -1, -2]


def test_infinities_saturate_and_nan_passes_the_fake_quantize():
    """A03."""
    x = F32([0.3, np.inf, -np.inf, np.nan, 9.0])
    expected = F32([0.3, 6.35, -6.4, np.nan, 6.35])
    # 0.3 and the ends are codes times the float32 scale: a rounding of float32 apart at most.
    np.testing.assert_allclose(fake_quantize(x, 0.05, qint8), expected, rtol=2e-7)
    columns = np.stack([x, x], axis=1)
    per_channel = fake_quantize(columns, F32([0.05, 0.05]), qint8, axis=1)
    np.testing.assert_array_equal(per_channel[:, 0], fake_quantize(x, 0.05, qint8))
    np.testing.assert_array_equal(per_channel[:, 1], per_channel[:, 0])


def test_quantize_refuses_nan():
    """A03."""
    with pytest.raises(NonFiniteError, match="1 NaN in a tensor of shape \\(3,\\)"):
        quantize([1.0, np.nan, np.inf], 0.05, qint8)


def test_quantize_saturates_infinities():
    assert quantize([np.inf, -np.inf], 0.05, qint8).tolist() == [127, -128]


def test_huge_values_saturate_without_a_warning():
    assert quantize(F32([3e38, -3e38]), F32(2.0**-40), qint16).tolist() == [32767, -32768]


@pytest.mark.parametrize(
    ("absmax", "scale", "largest"),
    [(0.9998382, 0.0078419, 0.9959173), (0.9990171, 0.0078354, 0.9950994)],
)
def test_published_int8_scales(absmax, scale, largest):
    found = scale_from_absmax(absmax, qint8)
    assert round(float(found), 7) == scale
    assert quantize(F32([absmax]), found, qint8).tolist() == [127]
    assert round(float(fake_quantize(F32([absmax]), found, qint8)[0]), 6) == round(largest, 6)


def test_published_scale_of_absmax_1_47():
    assert round(float(scale_from_absmax(1.47, qint8)), 7) == 0.0115294


def test_published_negative_extreme():
    """x = -absmax = -2.9943717 has code -127 and the value -2.9826291."""
    scale = scale_from_absmax(2.9943717, qint8)
    assert round(float(scale), 7) == 0.0234853
    assert quantize(F32([-2.9943717]), scale, qint8).tolist() == [-127]
    assert round(float(fake_quantize(F32([-2.9943717]), scale, qint8)[0]), 7) == -2.9826291


def test_minus_absmax_is_minus_128_for_some_values():
    absmax = np.linspace(0.5, 4.0, 4001, dtype=F32)
    codes = [int(quantize([-a], scale_from_absmax(a, qint8), qint8)[0]) for a in absmax]
    share = codes.count(-128) / len(codes)
    assert set(codes) == {-127, -128}
    assert 0.05 < share < 0.3  # about one in seven


def test_published_int16_maximum():
    scale = scale_from_absmax(1.0, qint16)
    assert round(float(fake_quantize(F32([1.0]), scale, qint16)[0]), 7) == 0.9999847


def test_threshold_scales_are_powers_of_two_for_one():
    assert scale_from_threshold(1.0, qint8) == F32(1 / 128)
    assert scale_from_threshold(1.0, qint16) == F32(1 / 32768)


def test_zero_range_and_smallest_scale():
    """A01."""
    assert float(scale_from_absmax(0.0, qint8)) == 2.0**-23
    assert float(scale_from_absmax(1e-30, qint16)) == 2.0**-40
    assert (fake_quantize(np.zeros(5, F32), scale_from_absmax(0.0, qint8), qint8) == 0).all()


def test_scales_come_for_arrays():
    scales = scale_from_absmax([0.0, 127.5], qint8)
    assert scales.dtype == F32
    assert scales.tolist() == [2.0**-23, 1.0]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_scale_refuses_what_is_not_finite(bad):
    with pytest.raises(NonFiniteError, match="range"):
        scale_from_absmax([1.0, bad], qint8)


def test_scale_refuses_a_negative_range():
    with pytest.raises(ArgumentError, match="negative"):
        scale_from_threshold(-1.0, qint8)


@pytest.mark.parametrize("dtype", [qint8, qint16])
def test_a_min_max_scale_keeps_its_own_data_in_range(dtype):
    absmax = np.linspace(0.01, 50.0, 997, dtype=F32)
    for a in absmax:
        scale = scale_from_absmax(a, dtype)
        assert in_range([a, -a, 0.0], scale, dtype).all()


def test_in_range_is_false_outside_and_for_nan():
    assert in_range([127.4, 127.6, -128.4, -128.6, np.nan], 1.0, qint8).tolist() == [
        True,
        False,
        True,
        False,
        False,
    ]


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -2, -3])
def test_per_channel_scales_run_along_any_axis(axis):
    x = np.random.default_rng(0).normal(size=(3, 4, 5)).astype(F32)
    scales = (np.arange(x.shape[axis]) + 1).astype(F32) / 40
    whole = fake_quantize(x, scales, qint8, axis)
    for channel, scale in enumerate(scales):
        expected = fake_quantize(np.take(x, channel, axis), scale, qint8)
        np.testing.assert_array_equal(np.take(whole, channel, axis), expected)


def test_scales_that_do_not_fit_are_refused():
    with pytest.raises(ArgumentError, match=r"shape \(3,\) does not fit axis 1 .* \(2, 4\)"):
        quantize(np.zeros((2, 4), F32), [0.1, 0.2, 0.3], qint8, axis=1)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_output_keeps_the_input_dtype(dtype):
    """A20: half computes in float32."""
    x = np.array([59000.0, -59000.0, 1.0], dtype=dtype)
    scale = scale_from_absmax(np.abs(x).max(), qint8)
    result = fake_quantize(x, scale, qint8)
    assert result.dtype == dtype
    exact = fake_quantize(x.astype(np.float64 if dtype == np.float64 else F32), scale, qint8)
    np.testing.assert_array_equal(result, exact.astype(dtype))


def test_half_scale_is_computed_in_float32():
    """A20: the range of a half tensor does not overflow."""
    # the published figure has seven digits
    assert float(scale_from_absmax(np.float16(59000), qint8)) == pytest.approx(462.8078, rel=1e-6)


def test_double_computes_in_double():
    x = np.array([0.5 - 1e-12])
    assert quantize(x, 1.0, qint8).tolist() == [0]
    assert quantize(x.astype(F32), 1.0, qint8).tolist() == [1]


def test_strided_input_gives_the_same_codes():
    """A19."""
    base = np.random.default_rng(1).normal(size=(2, 8, 6, 6)).astype(F32)
    for view in (base[:, 4:], base.swapaxes(1, 3), base[:, ::2], base[::-1]):
        expected = quantize(np.ascontiguousarray(view), 0.05, qint8)
        np.testing.assert_array_equal(quantize(view, 0.05, qint8), expected)


def test_empty_tensors_pass():
    assert quantize(np.zeros((0, 3), F32), 0.1, qint8).shape == (0, 3)
    assert fake_quantize(np.zeros((0, 3), F32), [0.1, 0.2, 0.3], qint8, 1).shape == (0, 3)


def test_dequantize_multiplies_in_float32():
    assert dequantize([-128, 3], 0.1).tolist() == [F32(-128) * F32(0.1), F32(3) * F32(0.1)]


@given(
    x=st.floats(-1e6, 1e6, width=32),
    scale=st.floats(2.0**-20, 1e4, width=32),
    dtype=st.sampled_from([qint4, qint8, qint16]),
)
def test_quantize_is_the_nearest_code(x, scale, dtype):
    """Within the two roundings of float32 arithmetic the code is the nearest one on the grid."""
    code = int(quantize(F32([x]), scale, dtype)[0])
    exact = Fraction(float(F32(x))) / Fraction(float(F32(scale)))
    nearest = min(max(exact, Fraction(dtype.qmin)), Fraction(dtype.qmax))
    # x / s and + 0.5 each round to 2**-24 of a value up to 2**16.
    assert abs(code - nearest) <= Fraction(1, 2) + Fraction(1, 64)


def test_scales_round_up_to_powers_of_two():
    """numerics.md section 4."""
    scales = np.float32([0.1, 0.125, 0.1250001, 1.0, 3.0, 2.0**-40, 2.0**-23])
    assert power_of_two_scale(scales).tolist() == [
        0.125,
        0.125,
        0.25,
        1.0,
        4.0,
        2.0**-40,
        2.0**-23,
    ]
    assert power_of_two_scale(scales).dtype == np.float32
