"""Compiled passes over tensors: requantize, sums, products, tables, pools, quantize."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qtune.arith.table import segment_table
from qtune.arith_fast.fake_quantize import quantize_held
from qtune.arith_fast.held import channels_last, to_held
from qtune.arith_fast.pool import max_pool2d_held, window_sum
from qtune.arith_fast.requantize import Requantizer
from qtune.arith_fast.table import lut8, lut16
from qtune.dtype import qint8, qint16
from qtune.errors import NonFiniteError
from tests.arith_fast.native.conftest import both, threads

DTYPE = st.sampled_from([qint8, qint16])
LENGTHS = st.sampled_from([0, 1, 7, 8, 15, 16, 17, 63, 64, 65, 1000, 8191, 8193, 20000])


def codes_of(rng, dtype, shape):
    return to_held(rng.integers(dtype.qmin, dtype.qmax + 1, size=shape), dtype)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_requantize_of_every_length_is_exact(data):
    draw = data.draw
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    kind = draw(st.sampled_from([torch.int32, torch.float32, torch.int64, torch.float64]))
    acc = torch.from_numpy(rng.integers(-(1 << 23), 1 << 23, size=draw(LENGTHS))).to(kind)
    m, n = int(rng.integers(1 << 14, 1 << 15)), draw(st.integers(-2, 60))
    out, sign = draw(DTYPE), draw(st.sampled_from([1, -1]))
    lo = draw(st.sampled_from([out.qmin, -3, 0]))
    steps = both(lambda: Requantizer(sign * m, n, 77, lo=lo, hi=out.qmax, out=out))
    with threads(draw(st.integers(1, 2))):
        found, expected = (step(acc) for step in steps)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("channels", [1, 3, 16, 17, 40])
@pytest.mark.parametrize("last", [True, False])
def test_requantize_per_channel_is_exact(channels, last):
    rng = np.random.default_rng(0)
    acc = torch.from_numpy(rng.integers(-(1 << 20), 1 << 20, size=(2, channels, 5, 7))).int()
    acc = channels_last(acc) if last else acc
    m, n = rng.integers(1 << 14, 1 << 15, channels), rng.integers(18, 24, channels)
    steps = both(lambda: Requantizer(m, n, m - 20000, lo=-128, hi=127, out=qint8))
    found, expected = (step(acc) for step in steps)
    assert torch.equal(found, expected)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_weighted_sums_and_products_are_exact(data):
    draw = data.draw
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    sources = [draw(DTYPE) for _ in range(draw(st.integers(1, 3)))]
    out, length = draw(DTYPE), draw(LENGTHS)
    operands = [codes_of(rng, dtype, (length,)) for dtype in sources]
    ms = [int(v) for v in rng.integers(-(1 << 15) + 1, 1 << 15, size=len(sources))]
    n = draw(st.integers(0, 30))
    steps = both(lambda: Requantizer(1, n, 12345, lo=-100, hi=out.qmax, out=out, bound=1 << 33))
    found, expected = (step.weighted_sum(operands, ms) for step in steps)
    assert torch.equal(found, expected)
    steps = both(lambda: Requantizer(ms[0], n + 6, 0, lo=out.qmin, hi=100, out=out, bound=1 << 30))
    found, expected = (step.product(operands[0], operands[-1]) for step in steps)
    assert torch.equal(found, expected)


def test_products_broadcast():
    rng = np.random.default_rng(0)
    a, b = codes_of(rng, qint8, (2, 5, 4, 3)), codes_of(rng, qint8, (1, 5, 1, 1))
    step = Requantizer(20000, 20, lo=-128, hi=127, out=qint8, bound=1 << 14)
    assert torch.equal(step.product(a, b), step.product(a, b.expand(a.shape).contiguous()))


def out_scale(dtype):
    return 1 / -dtype.qmin


@settings(max_examples=25, deadline=None)
@given(source=DTYPE, out=DTYPE, length=LENGTHS, seed=st.integers(0, 2**32))
def test_tables_are_exact(source, out, length, seed):
    rng = np.random.default_rng(seed)
    x = codes_of(rng, source, (length,))
    if source is qint8:
        table = rng.integers(out.qmin, out.qmax + 1, size=256)
        found, expected = both(lambda: lut8(table, out)(x))
    else:
        table = segment_table(np.tanh, 1e-4, out_scale(out), qint16.qmin, qint16.qmax, out)
        found, expected = both(lambda: lut16(table, out)(x))
    assert torch.equal(found, expected)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_pools_of_every_width_are_exact(data):
    draw = data.draw
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    dtype = draw(DTYPE)
    shape = (2, draw(st.sampled_from([1, 3, 15, 16, 17, 63, 64, 65, 130])), 9, 8)
    kernel, stride, dilation = (tuple(int(v) for v in rng.integers(1, 4, 2)) for _ in range(3))
    padding = tuple(int(rng.integers(0, k // 2 + 1)) for k in (*kernel, *kernel))
    ceil_mode = draw(st.booleans())
    x = codes_of(rng, dtype, shape)
    with threads(draw(st.integers(1, 2))):
        found, expected = both(
            lambda: max_pool2d_held(x, kernel, stride, padding, dilation, ceil_mode)
        )
        assert torch.equal(found, expected)
        found, expected = both(lambda: window_sum(x, kernel, stride, padding, ceil_mode))
        assert torch.equal(found, expected)


@settings(max_examples=60, deadline=None)
@given(
    dtype=DTYPE,
    shape=st.sampled_from([(5,), (0, 3), (3, 17), (2, 3, 7, 5), (1, 3, 50, 51), (2, 1, 4, 4)]),
    last=st.booleans(),
    scale=st.floats(2**-20, 4.0, width=32),
    seed=st.integers(0, 2**32),
)
def test_quantize_is_exact_in_every_order(dtype, shape, last, scale, seed):
    rng = np.random.default_rng(seed)
    ties = (rng.integers(dtype.qmin - 3, dtype.qmax + 4, size=shape) + 0.5) * scale
    plain = rng.normal(0, scale * dtype.qmax, size=shape)
    values = np.where(rng.random(shape) < 0.5, ties, plain).astype(np.float32)
    x = torch.from_numpy(values)
    x = channels_last(x) if last else x
    found, expected = both(lambda: quantize_held(x, scale, dtype))
    assert torch.equal(found, expected)
    assert x.dim() < 4 or found.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("place", [0, 17, -1])
def test_quantize_refuses_nan_and_saturates_infinities(place):
    x = torch.zeros(1, 3, 7, 9)
    x.view(-1)[3], x.view(-1)[4] = float("inf"), float("-inf")
    codes = quantize_held(x, 0.1, qint8).contiguous().view(-1)
    assert codes[3:5].tolist() == [255, 0]
    x.view(-1)[place] = float("nan")
    with pytest.raises(NonFiniteError, match="1 NaN"):
        quantize_held(x, 0.1, qint8)
