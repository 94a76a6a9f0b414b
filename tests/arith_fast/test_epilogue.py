"""numerics.md sections 2.1 to 2.4: bias, fused operand, saturation and requantize on row blocks."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qtune.arith.requantize import rescale
from qtune.arith_fast.blocks import BLOCK
from qtune.arith_fast.epilogue import AddendStep, Epilogue
from qtune.arith_fast.held import from_held, to_held
from qtune.dtype import qint8, qint16, qint32
from tests.arith_fast.oracle import finish


@settings(max_examples=200, deadline=None)
@given(
    m=st.integers(2**14, 2**15 - 1),
    sign=st.sampled_from([1, -1]),
    n=st.one_of(st.integers(-60, 70), st.integers(44, 47)),
    dtype=st.sampled_from([qint8, qint16]),
    wide=st.booleans(),
)
def test_fused_operands_are_rescaled_half_up(m, sign, n, dtype, wide):
    codes = np.append(np.arange(dtype.qmin, dtype.qmax, 1 + dtype.qmax // 64), dtype.qmax)
    expected = rescale(codes, sign * m, n)
    if wide:
        # float64 holds what the 48-bit accumulator can meet
        keep = np.abs(expected) < 2**53
        codes, expected = codes[keep], expected[keep]
    else:
        expected = np.clip(expected, qint32.qmin, qint32.qmax)
    found = AddendStep(sign * m, n, dtype, wide)(to_held(codes, dtype)[:, None])
    np.testing.assert_array_equal(found[:, 0].to(torch.int64).numpy(), expected)


@pytest.mark.parametrize("channels", [1, 3, 64])
def test_blocks_and_parts_add_up(channels):
    rng = np.random.default_rng(channels)
    count = 2 * BLOCK // channels + 7
    parts = [rng.integers(-(2**20), 2**20, (count, channels)) for _ in range(3)]
    bias = rng.integers(-999, 999, channels)
    m, n = rng.integers(2**14, 2**15, channels), rng.integers(20, 24, channels)
    bound = 3 << 20
    run = Epilogue(bias, m, n, bound=bound, out=qint8, lo=0, hi=99, addend=None, wide=False)
    target = torch.empty((count, channels), dtype=torch.uint8)
    run([torch.from_numpy(p).float() for p in parts], target)
    expected = finish(sum(parts), bias, m, n, 0, 99, axis=-1)
    np.testing.assert_array_equal(from_held(target), expected)
    assert run.saturated == 0


def test_saturated_sums_are_counted_once_each():
    sums = torch.tensor([[2.0**31, -(2.0**31) - 2.0**8, 5.0]], dtype=torch.float64)
    run = Epilogue(
        0, None, None, bound=1 << 32, out=qint32, lo=None, hi=None, addend=None, wide=False
    )
    target = torch.empty((1, 3), dtype=torch.int32)
    run([sums], target)
    assert from_held(target).tolist() == [[2**31 - 1, -(2**31), 5]]
    assert run.saturated == 2
