"""numerics.md section 2.2: the bias on the accumulator's grid."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qtune.arith.bias import INT32_BIAS_LIMIT, INT48_BIAS_LIMIT, quantize_bias
from qtune.errors import ArgumentError


def test_bias_is_rounded_half_up_on_the_accumulator_scale():
    plan = quantize_bias([0.5, 1.5, -0.5, -1.5], 1.0, np.ones(4), INT32_BIAS_LIMIT)
    assert plan.bias_q.tolist() == [1, 2, 0, -1]
    assert plan.bias_q.dtype == np.int64
    assert not plan.widened.any()


def test_a_bias_that_does_not_fit_widens_its_channel_only():
    """A02: 3.0 on a grid of 1e-9 would need 3e9; no wrap, no clip."""
    s_x, s_w = np.float32(0.1), np.float32([1e-8, 0.01])
    bias_q, scales, widened = quantize_bias([3.0, 3.0], s_x, s_w, INT32_BIAS_LIMIT)
    assert widened.tolist() == [True, False]
    assert scales[1] == s_w[1]
    assert abs(int(bias_q[0])) <= INT32_BIAS_LIMIT
    back = float(bias_q[0]) * float(s_x) * float(scales[0])
    # float32 scale or value against the float64 formula: the last bits differ
    assert back == pytest.approx(3.0, rel=1e-6)


def test_widened_scale_is_the_smallest_that_fits():
    s_x = np.float32(0.1)
    plan = quantize_bias([3.0], s_x, [1e-8], INT32_BIAS_LIMIT)
    below = float(np.nextafter(plan.s_w[0], np.float32(0)))
    assert np.floor(3.0 / (float(s_x) * below) + 0.5) > INT32_BIAS_LIMIT


def test_the_fused_addend_counts():
    s_x, s_w = 1.0, [2.0**-20]
    alone = quantize_bias([100.0], s_x, s_w, INT32_BIAS_LIMIT)
    assert not alone.widened[0]
    fused = quantize_bias([100.0], s_x, s_w, INT32_BIAS_LIMIT, addend_scale=16.0)
    assert fused.widened[0]
    acc_scale = float(fused.s_w[0])
    assert abs(int(fused.bias_q[0])) + 128 * 16.0 / acc_scale <= INT32_BIAS_LIMIT


def test_an_int16_addend_reaches_further():
    plan = quantize_bias([0.0], 1.0, [2.0**-20], INT32_BIAS_LIMIT, 1.0, addend_extreme=32768)
    assert plan.widened[0]
    assert 32768 / float(plan.s_w[0]) <= INT32_BIAS_LIMIT


def test_the_wide_accumulator_takes_more():
    plan = quantize_bias([3.0], 0.1, [1e-8], INT48_BIAS_LIMIT)
    assert not plan.widened[0]
    assert int(plan.bias_q[0]) > 2**31


def test_no_bias_is_zero():
    plan = quantize_bias(None, 0.1, [0.1, 0.2], INT32_BIAS_LIMIT)
    assert plan.bias_q.tolist() == [0, 0]


def test_one_scale_serves_all_channels():
    plan = quantize_bias([1.0, 2.0], 0.5, 0.5, INT32_BIAS_LIMIT)
    assert plan.bias_q.tolist() == [4, 8]
    assert plan.s_w.tolist() == [0.5, 0.5]


def test_a_bias_that_is_not_finite_is_refused():
    with pytest.raises(ArgumentError, match="bias"):
        quantize_bias([np.nan], 0.1, [0.1], INT32_BIAS_LIMIT)


@given(
    bias=st.floats(-1e5, 1e5, width=32),
    s_x=st.floats(2.0**-30, 100, width=32),
    s_w=st.floats(2.0**-40, 10, width=32),
    addend=st.one_of(st.none(), st.floats(2.0**-30, 1000, width=32)),
)
def test_bias_and_addend_always_fit(bias, s_x, s_w, addend):
    plan = quantize_bias([bias], s_x, [s_w], INT32_BIAS_LIMIT, addend)
    step = float(np.float32(s_x)) * float(plan.s_w[0])
    extra = 0.0 if addend is None else 128 * float(np.float32(addend)) / step
    assert abs(int(plan.bias_q[0])) + extra <= INT32_BIAS_LIMIT
    assert plan.s_w[0] >= np.float32(s_w)
    assert plan.widened[0] == (plan.s_w[0] != np.float32(s_w))
