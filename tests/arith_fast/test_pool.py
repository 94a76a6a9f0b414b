"""numerics.md sections 3 and 7: pooling on held codes."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from qtune.arith_fast.held import from_held, to_held
from qtune.arith_fast.pool import max_pool2d_held, output_size, window_sum
from qtune.dtype import qint8, qint16
from qtune.errors import ArgumentError

pytestmark = pytest.mark.usefixtures("each_form")


PAIR = st.tuples(st.integers(1, 3), st.integers(1, 3))


@settings(max_examples=80, deadline=None)
@given(kernel=PAIR, stride=PAIR, dilation=PAIR, ceil=st.booleans(), seed=st.integers(0, 2**32))
def test_max_pool_equals_torch(kernel, stride, dilation, ceil, seed):
    rng = np.random.default_rng(seed)
    pad = [int(rng.integers(0, k // 2 + 1)) for k in kernel]
    dtype = [qint8, qint16][int(rng.integers(0, 2))]
    codes = rng.integers(dtype.qmin, dtype.qmax + 1, size=(2, 3, 9, 8))
    found = max_pool2d_held(to_held(codes, dtype), kernel, stride, (*pad, *pad), dilation, ceil)
    expected = F.max_pool2d(torch.from_numpy(codes).double(), kernel, stride, pad, dilation, ceil)
    np.testing.assert_array_equal(from_held(found), expected.long().numpy())


@settings(max_examples=60, deadline=None)
@given(kernel=PAIR, stride=PAIR, ceil=st.booleans(), seed=st.integers(0, 2**32))
def test_window_sum_equals_torch(kernel, stride, ceil, seed):
    rng = np.random.default_rng(seed)
    pad = [int(rng.integers(0, k // 2 + 1)) for k in kernel]
    dtype = [qint8, qint16][int(rng.integers(0, 2))]
    codes = rng.integers(dtype.qmin, dtype.qmax + 1, size=(2, 3, 9, 8))
    found = window_sum(to_held(codes, dtype), kernel, stride, (*pad, *pad), ceil)
    expected = F.avg_pool2d(
        torch.from_numpy(codes).double(), kernel, stride, pad, ceil, divisor_override=1
    )
    np.testing.assert_array_equal(from_held(found), expected.long().numpy())


def test_uneven_pads():
    held = to_held(np.array([[[[1, 2], [3, 4]]]]), qint8)
    assert from_held(max_pool2d_held(held, (2, 2), (1, 1), (1, 0, 0, 1))).tolist() == [
        [[[2, 2], [4, 4]]]
    ]
    assert from_held(window_sum(held, (2, 2), (1, 1), (1, 0, 0, 1))).tolist() == [
        [[[3, 2], [10, 6]]]
    ]


def test_max_pool_pads_with_qmin():
    held = to_held(np.full((1, 1, 1, 1), -128), qint8)
    assert from_held(max_pool2d_held(held, (3, 3), (1, 1), (1, 1, 1, 1))).tolist() == [[[[-128]]]]


def test_maps_that_torch_refuses():
    """Section 7: 8-bit maps of more than 255 elements in channels_last."""
    codes = np.random.default_rng(0).integers(-128, 128, size=(1, 2, 20, 20))
    found = max_pool2d_held(to_held(codes, qint8), (3, 3), (2, 2), (1, 1, 1, 1))
    expected = F.max_pool2d(torch.from_numpy(codes).double(), 3, 2, 1).long()
    np.testing.assert_array_equal(from_held(found), expected.numpy())


def test_global_sum():
    codes = np.full((2, 3, 50, 50), -128)
    found = window_sum(to_held(codes, qint8), (50, 50), (50, 50))
    assert found.dtype == torch.int32
    assert (from_held(found) == -128 * 2500).all()


def test_results_are_held_in_channels_last():
    held = to_held(np.zeros((2, 3, 8, 8)), qint8)
    for result in (
        max_pool2d_held(held, (2, 2), (2, 2)),
        window_sum(held, (2, 2), (2, 2)),
    ):
        assert result.is_contiguous(memory_format=torch.channels_last)


def test_a_window_must_fit():
    with pytest.raises(ArgumentError, match=r"\(3, 3\) does not fit a map of \(2, 2\)"):
        output_size((2, 2), (3, 3), (1, 1), (0, 0, 0, 0))
