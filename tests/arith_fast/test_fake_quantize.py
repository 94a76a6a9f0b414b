"""numerics.md section 1: the torch forms equal ``qtune.arith.quantize`` in every bit."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qtune.arith import quantize as arith
from qtune.arith_fast.blocks import BLOCK
from qtune.arith_fast.fake_quantize import (
    clip_only,
    dequantize_held,
    fake_quantize,
    in_range,
    quantize_held,
    round_only,
)
from qtune.arith_fast.held import from_held
from qtune.dtype import qint4, qint8, qint16
from qtune.errors import ArgumentError, NonFiniteError

pytestmark = pytest.mark.usefixtures("each_form")


DTYPES = st.sampled_from([qint4, qint8, qint16])
INF, NAN = float("inf"), float("nan")


def expected_of(x, scale, dtype, axis=-1):
    """The NumPy result; bfloat16 by way of float32, which it computes in."""
    wide = x.detach() if x.dtype == torch.float64 else x.detach().float()
    result = arith.fake_quantize(wide.numpy(), np.asarray(scale), dtype, axis)
    return torch.from_numpy(result).to(x.dtype)


def gradient_of(x, scale, dtype, axis=-1):
    leaf = x.detach().clone().requires_grad_()
    fake_quantize(leaf, torch.as_tensor(scale), dtype.qmin, dtype.qmax, axis).sum().backward()
    return leaf.grad


def test_ties_are_half_up():
    """A21."""
    ties = torch.tensor([0.5, 1.5, 2.5, -0.5, -1.5, -2.5])
    assert fake_quantize(ties, 1.0, -128, 127).tolist() == [1, 2, 3, 0, -1, -2]
    assert from_held(quantize_held(ties, 1.0, qint8)).tolist() == [1, 2, 3, 0, -1, -2]


def test_infinities_saturate_and_nan_passes():
    """A03."""
    x = torch.tensor([0.3, INF, -INF, NAN, 9.0])
    y = fake_quantize(x, 0.05, -128, 127)
    # codes times the float32 scale: one rounding of float32 away from the decimal numbers
    torch.testing.assert_close(
        y, torch.tensor([0.3, 6.35, -6.4, NAN, 6.35]), rtol=2e-7, atol=0, equal_nan=True
    )
    columns = x[:, None].expand(5, 2)
    both = fake_quantize(columns, torch.tensor([0.05, 0.05]), -128, 127, 1)
    torch.testing.assert_close(both[:, 1], y, rtol=0, atol=0, equal_nan=True)
    with pytest.raises(NonFiniteError, match="1 NaN in a tensor of shape \\(5,\\)"):
        quantize_held(x, 0.05, qint8)


def test_quantize_finds_one_nan_in_a_large_tensor():
    x = torch.zeros(3 * BLOCK)
    x[-1] = NAN
    with pytest.raises(NonFiniteError, match="1 NaN"):
        quantize_held(x, 0.05, qint8)


def test_quantize_saturates_infinities():
    held = quantize_held(torch.tensor([INF, -INF]), 0.1, qint16)
    assert from_held(held).tolist() == [32767, -32768]


@settings(max_examples=150, deadline=None)
@given(
    values=st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=20),
    scale=st.floats(2.0**-40, 1e6, width=32),
    dtype=DTYPES,
    kind=st.sampled_from([torch.float32, torch.float64, torch.float16, torch.bfloat16]),
)
def test_any_values_equal_the_reference(values, scale, dtype, kind):
    x = torch.tensor(values, dtype=kind)
    y = fake_quantize(x, scale, dtype.qmin, dtype.qmax)
    assert y.dtype == kind
    assert torch.equal(y, expected_of(x, scale, dtype))
    wide = x if kind == torch.float64 else x.float()
    codes = arith.quantize(wide.numpy(), scale, dtype)
    np.testing.assert_array_equal(from_held(quantize_held(x, scale, dtype)), codes)
    mask = in_range(x, scale, dtype.qmin, dtype.qmax)
    np.testing.assert_array_equal(mask.numpy(), arith.in_range(wide.numpy(), scale, dtype))


@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(3, 5, 7, 9), (130, 70, 3, 3), (2, 64, 40, 40), (300, 500)])
def test_every_axis_and_memory_format_equals_the_reference(kind, shape):
    """A19, A20: strided, permuted, expanded views; small and block-wise tensors."""
    generator = torch.Generator().manual_seed(0)
    base = torch.randn(shape, generator=generator).to(kind) * 3
    views = [
        base,
        base.t() if base.dim() == 2 else base.transpose(1, 3),
        base[:, ::2],
        base.flip(0),
    ]
    if base.dim() == 4:
        views += [
            base.contiguous(memory_format=torch.channels_last),
            base[:1].expand(4, -1, -1, -1),
        ]
    for view in views:
        for axis in (None, *range(-view.dim(), view.dim())):
            if axis is None:
                scale, axis = torch.tensor([0.05]), -1
            else:
                scale = torch.rand(view.shape[axis], generator=generator) * 0.1 + 0.001
            y = fake_quantize(view, scale, -128, 127, axis)
            assert y.shape == view.shape
            assert torch.equal(y, expected_of(view, scale, qint8, axis))


@pytest.mark.parametrize("size", [40, 3 * BLOCK])
def test_gradient_is_one_where_the_code_is_in_range(size):
    x = torch.linspace(-20, 20, size)
    codes = torch.floor(x / 0.1 + 0.5)
    expected = ((codes >= -128) & (codes <= 127)).float()
    assert torch.equal(gradient_of(x, 0.1, qint8), expected)


def test_gradient_at_the_edges_and_at_what_is_not_finite():
    x = torch.tensor([127.49, 127.5, -128.5, -128.51, INF, NAN])
    assert gradient_of(x, 1.0, qint8).tolist() == [1, 0, 1, 0, 0, 0]


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_gradient_per_channel(axis):
    x = torch.randn(4, 5, 6, generator=torch.Generator().manual_seed(1))
    scale = torch.linspace(0.005, 0.02, x.shape[axis])
    shape = [1] * 3
    shape[axis] = -1
    codes = torch.floor(x / scale.view(shape) + 0.5)
    expected = ((codes >= -128) & (codes <= 127)).float()
    assert torch.equal(gradient_of(x, scale, qint8, axis), expected)


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float64])
def test_gradient_keeps_the_dtype(kind):
    assert gradient_of(torch.ones(3, dtype=kind), 0.1, qint8).dtype == kind


def test_no_gradient_reaches_the_scale():
    scale = torch.tensor([0.1], requires_grad=True)
    x = torch.ones(3, requires_grad=True)
    fake_quantize(x, scale, -128, 127).sum().backward()
    assert scale.grad is None


def test_half_range_is_quantized_in_float32():
    """A20."""
    x = torch.tensor([59000.0, -59000.0, 1.0], dtype=torch.half)
    scale = float(arith.scale_from_absmax(x.abs().max().item(), qint8))
    y = fake_quantize(x, scale, -128, 127)
    assert y.dtype == torch.half
    assert y.tolist() == [58784.0, -58784.0, 0.0]


def test_autocast_changes_nothing():
    """A20."""
    x = torch.linspace(-3, 3, 100)
    plain = fake_quantize(x, 0.02, -128, 127)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(fake_quantize(x, 0.02, -128, 127), plain)


def test_empty_tensors_pass():
    x = torch.zeros(0, 3, requires_grad=True)
    y = fake_quantize(x, torch.tensor([0.1, 0.2, 0.3]), -128, 127, 1)
    y.sum().backward()
    assert y.shape == (0, 3)
    assert quantize_held(torch.zeros(0, 2, 3, 3), 0.1, qint8).shape == (0, 2, 3, 3)


def test_input_is_left_alone():
    x = torch.linspace(-3, 3, 100)
    before = x.clone()
    fake_quantize(x, 0.02, -128, 127)
    assert torch.equal(x, before)


def test_clip_and_round_split_the_full_fake_quantize():
    """Section 1, row in range."""
    x = torch.tensor([0.3, 12.72, 12.8, -12.84, -12.9, INF, NAN])
    clipped, rounded = clip_only(x, 0.1, -128, 127), round_only(x, 0.1, -128, 127)
    inside = in_range(x, 0.1, -128, 127)
    full = fake_quantize(x, 0.1, -128, 127)
    assert inside.tolist() == [True, True, False, True, False, False, False]
    assert torch.equal(clipped[inside], x[inside])
    assert torch.equal(rounded[inside], full[inside])
    assert torch.equal(clipped[~inside][:3], full[~inside][:3])
    assert torch.equal(rounded[~inside][:3], x[~inside][:3])
    assert clipped[-1].isnan()
    assert rounded[-1].isnan()


@pytest.mark.parametrize("dtype", [qint8, qint16])
def test_min_max_scale_clips_nothing(dtype):
    x = torch.randn(1000, generator=torch.Generator().manual_seed(2))
    scale = float(arith.scale_from_absmax(x.abs().max().item(), dtype))
    assert torch.equal(clip_only(x, scale, dtype.qmin, dtype.qmax), x)
    full = fake_quantize(x, scale, dtype.qmin, dtype.qmax)
    assert torch.equal(round_only(x, scale, dtype.qmin, dtype.qmax), full)


def test_clip_and_round_have_straight_through_gradients():
    x = torch.tensor([0.3, INF], requires_grad=True)
    clip_only(x, 0.1, -128, 127).sum().backward()
    assert x.grad.tolist() == [1, 0]
    x.grad = None
    rounded = round_only(x, 0.1, -128, 127)
    assert torch.equal(rounded, round_only(x.detach(), 0.1, -128, 127))
    rounded.sum().backward()
    assert x.grad.tolist() == [1, 1]


def test_dequantize_equals_the_reference():
    x = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(3))
    for dtype in (qint8, qint16):
        held = quantize_held(x, 0.05, dtype)
        expected = arith.dequantize(from_held(held), np.float32(0.05))
        np.testing.assert_array_equal(dequantize_held(held, 0.05).numpy(), expected)


def test_scales_that_do_not_fit_are_refused():
    with pytest.raises(ArgumentError, match="3 scales do not fit axis 1"):
        fake_quantize(torch.zeros(2, 4), torch.ones(3), -128, 127, 1)


def test_integers_are_refused():
    with pytest.raises(ArgumentError, match="int64"):
        fake_quantize(torch.zeros(2, dtype=torch.int64), 0.1, -128, 127)
