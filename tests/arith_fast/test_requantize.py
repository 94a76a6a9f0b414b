"""numerics.md sections 2.3, 3, 7: the torch requantize equals ``qtune.arith.requantize``."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qtune.arith import requantize as arith
from qtune.arith_fast.blocks import BLOCK
from qtune.arith_fast.held import channels_last, from_held, to_held
from qtune.arith_fast.requantize import (
    Requantizer,
    add_common_shift,
    requantize_acc,
    requantize_held,
    rescale,
)
from qtune.arith_fast.steps import DoubleStep, IntegerStep
from qtune.dtype import qint8, qint16
from qtune.errors import ArgumentError

pytestmark = pytest.mark.usefixtures("each_form")

INT32 = st.integers(-(2**31), 2**31 - 1)
INT48 = st.integers(-(2**47), 2**47 - 1)
M15 = st.integers(2**14, 2**15 - 1)
M31 = st.integers(2**30, 2**31 - 1)
OUT = st.sampled_from([qint8, qint16])


def ties_of(m, n, codes):
    """Accumulators next to the ties of ``acc * m / 2**n``, where a rounding error would show."""
    near = [round((code + 0.5) * 2.0**n / m) for code in codes]
    return sorted({v + d for v in near for d in (-1, 0, 1) if abs(v) < 2**31 - 2})


@settings(max_examples=250, deadline=None)
@given(
    accs=st.lists(INT32, min_size=1, max_size=6),
    m=st.one_of(M15, M31),
    sign=st.sampled_from([1, -1]),
    n=st.one_of(st.integers(-70, 90), st.integers(0, 1), st.integers(44, 48)),
    bias=st.integers(-(2**30), 2**30),
    out=OUT,
    wide=st.booleans(),
)
def test_int32_accumulators_equal_the_reference(accs, m, sign, n, bias, out, wide):
    codes = ties_of(m, n, [-128, -127, -1, 0, 1, 126, 127]) if 0 < n < 60 else []
    acc = np.array(accs + codes, dtype=np.int64) - bias
    expected = arith.requantize(acc + bias, sign * m, n, out)
    held = torch.from_numpy(acc if wide else np.clip(acc, -(2**31), 2**31 - 1))
    if not wide:
        expected = arith.requantize(held.numpy() + bias, sign * m, n, out)
        held = held.to(torch.int32)
    found = requantize_acc(held, sign * m, n, bias, out.qmin, out.qmax, out)
    np.testing.assert_array_equal(from_held(found), expected)


@settings(max_examples=120, deadline=None)
@given(
    accs=st.lists(INT48, min_size=1, max_size=6),
    m=st.one_of(M15, M31),
    n=st.integers(-5, 90),
    out=OUT,
)
def test_48_bit_accumulators_equal_the_reference(accs, m, n, out):
    acc = np.array(accs, dtype=np.int64)
    found = requantize_acc(torch.from_numpy(acc), m, n, None, out.qmin, out.qmax, out)
    np.testing.assert_array_equal(from_held(found), arith.requantize(acc, m, n, out))
    np.testing.assert_array_equal(rescale(torch.from_numpy(acc), m, n), arith.rescale(acc, m, n))


@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.int32, torch.int64])
def test_every_accumulator_dtype_gives_the_same_codes(kind):
    acc = torch.arange(-5000, 5000, 7)
    found = requantize_acc(acc.to(kind), 20000, 20, 3, -128, 127, qint8)
    expected = arith.requantize(acc.numpy() + 3, 20000, 20, qint8)
    np.testing.assert_array_equal(from_held(found), expected)


@pytest.mark.parametrize("shape", [(2, 5, 3, 4), (3, 5), (2, 5, 7), (4, 5, 90, 100)])
@pytest.mark.parametrize("last", [False, True])
def test_channels_are_dimension_one_in_any_memory_format(shape, last):
    """A19."""
    rng = np.random.default_rng(0)
    acc = rng.integers(-(2**20), 2**20, size=shape)
    m, n, bias = rng.integers(2**14, 2**15, 5), rng.integers(18, 24, 5), rng.integers(-99, 99, 5)
    held = torch.from_numpy(acc)
    if last and held.dim() == 4:
        held = held.contiguous(memory_format=torch.channels_last)
    elif last:
        held = torch.flip(torch.flip(held, [0]).contiguous(), [0])
    shaped = [v.reshape(1, -1, *[1] * (len(shape) - 2)) for v in (m, n, bias)]
    expected = np.clip(arith.rescale(acc + shaped[2], shaped[0], shaped[1]), -5, 100)
    found = requantize_acc(held, m, n, bias, -5, 100, qint8)
    np.testing.assert_array_equal(from_held(found), expected)


def test_ties_round_upwards():
    """A21."""
    acc = torch.tensor([1, 3, 5, -1, -3, -5], dtype=torch.int32)
    found = requantize_acc(acc, 1 << 14, 15, None, -128, 127, qint8)
    assert from_held(found).tolist() == [1, 2, 3, 0, -1, -2]


def test_saturation_after_rounding_with_clamps():
    acc = torch.tensor([253, 254, 255, -257, -256], dtype=torch.int32)
    found = requantize_acc(acc, 1 << 14, 15, None, -100, 127, qint8)
    assert from_held(found).tolist() == [127, 127, 127, -100, -100]


def test_unused_channels_with_long_shifts_stay_in_double():
    """A channel of zero weights has a scale of 2**-40 at least: its results are all 0."""
    step = Requantizer([20000, 20000], [22, 55], lo=-128, hi=127, out=qint8).step
    assert isinstance(step, DoubleStep)
    acc = torch.tensor([[2**21, 2**31 - 1], [-(2**21), -(2**31)]])
    found = requantize_acc(acc.to(torch.int32), [20000, 20000], [22, 55], 0, -128, 127, qint8)
    expected = arith.requantize(acc.numpy(), [20000, 20000], [22, 55], qint8)
    np.testing.assert_array_equal(from_held(found), expected)


def test_what_double_can_not_hold_goes_through_int64():
    step = Requantizer(2**31 - 1, 50, lo=-128, hi=127, out=qint8).step
    assert isinstance(step, IntegerStep)


@settings(max_examples=100, deadline=None)
@given(
    m=M15,
    sign=st.sampled_from([1, -1]),
    n=st.integers(-3, 40),
    source=OUT,
    target=OUT,
)
def test_rescaling_codes_equals_the_reference(m, sign, n, source, target):
    codes = np.arange(source.qmin, source.qmax + 1, max(1, (source.qmax + 1) // 64))
    found = requantize_held(to_held(codes, source), sign * m, n, source, target)
    expected = arith.requantize(codes, sign * m, n, target)
    np.testing.assert_array_equal(from_held(found), expected)


@settings(max_examples=120, deadline=None)
@given(
    factors=st.lists(
        st.floats(1e-4, 30).flatmap(lambda v: st.sampled_from([v, -v])), min_size=1, max_size=3
    ),
    constant=st.integers(-(2**24), 2**24),
    source=OUT,
    out=OUT,
    seed=st.integers(0, 2**32),
)
def test_sums_over_a_common_shift_equal_the_reference(factors, constant, source, out, seed):
    rng = np.random.default_rng(seed)
    ms, n = arith.common_shift(factors)
    shapes = [(2, 3, 4, 5), (1, 3, 1, 1), (5,)]
    operands = [
        rng.integers(source.qmin, source.qmax + 1, size=shapes[i]) for i in range(len(factors))
    ]
    total = sum(q * m for q, m in zip(operands, ms, strict=True)) + constant
    expected = arith.requantize(total, 1, n, out)
    held = [to_held(q, source) for q in operands]
    np.testing.assert_array_equal(from_held(add_common_shift(held, ms, n, out, constant)), expected)


def test_large_sums_run_in_blocks():
    rng = np.random.default_rng(1)
    shape = (2, 8, 100, 100)
    a, b = (rng.integers(-128, 128, size=shape) for _ in range(2))
    assert a.size > 2 * BLOCK
    found = add_common_shift([to_held(a, qint8), to_held(b, qint8)], (16384, -9000), 15, qint8)
    np.testing.assert_array_equal(
        from_held(found), arith.requantize(a * 16384 - b * 9000, 1, 15, qint8)
    )


def test_operands_in_different_memory_formats_add_up():
    """A19."""
    rng = np.random.default_rng(2)
    a, b = (rng.integers(-128, 128, size=(2, 3, 4, 5)) for _ in range(2))
    held = [to_held(a, qint8), to_held(b, qint8).contiguous()]
    found = add_common_shift(held, (16384, 16384), 15, qint8)
    expected = arith.requantize((a + b) * 16384, 1, 15, qint8)
    np.testing.assert_array_equal(from_held(found), expected)


def test_a_multiplier_per_operand_is_needed():
    with pytest.raises(ArgumentError, match="one multiplier per operand"):
        add_common_shift([to_held([1], qint8)], (1, 2), 3, qint8)


def test_clamps_must_fit_the_output():
    with pytest.raises(ArgumentError, match="lo=5, hi=4"):
        requantize_acc(torch.zeros(1), 1, 1, None, 5, 4, qint8)


@pytest.mark.parametrize("n", [0, 5])
def test_empty_tensors_pass(n):
    assert requantize_acc(torch.zeros(0, 3), 5, n, None, -128, 127, qint8).shape == (0, 3)


def test_weighted_sum_takes_an_operand_without_the_batch_axis_of_one():
    """[C, H, W] has the elements of a channels_last [1, C, H, W], but in another order."""
    rng = np.random.default_rng(0)
    a, b = rng.integers(-128, 128, (1, 3, 5, 4)), rng.integers(-128, 128, (3, 5, 4))
    step = Requantizer(1, 1, -3 * 128, lo=-128, hi=127, out=qint8, bound=3 * 256)
    found = step.weighted_sum([channels_last(to_held(a, qint8)), to_held(b, qint8)], [1, 2])
    expected = np.clip((a + 2 * b + 1) >> 1, -128, 127)
    assert np.array_equal(from_held(found), expected)
