"""Gradients of a learned scale: exact where the function has a derivative, else the formula."""

import math

import pytest
import torch

from qtune.arith_fast.fake_quantize import fake_quantize, learned_fake_quantize
from qtune.errors import ArgumentError

GRID = -128, 127


def outside(shape, scale, axis=-1, seed=0):
    """float64 data of which every code lies far outside of the grid."""
    generator = torch.Generator().manual_seed(seed)
    signs = torch.where(torch.rand(shape, generator=generator) < 0.5, -1.0, 1.0).double()
    size = 300 + 50 * torch.rand(shape, generator=generator).double()
    steps = scale if scale.numel() == 1 else scale.view(*(-1 if d == axis else 1 for d in range(2)))
    return signs * size * steps


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("channels", [1, 3])
def test_what_saturates_passes_gradcheck(inside, channels):
    """There the result is a code times the scale, whose derivative is that code."""
    scale = torch.linspace(0.1, 0.4, channels, dtype=torch.float64, requires_grad=True)
    x = outside((3, 7), scale.detach(), 0).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda x, s: learned_fake_quantize(x, s, *GRID, 0, inside=inside), (x, scale)
    )


def test_values_are_those_of_fake_quantize():
    x = torch.randn(4, 5, 6) * 3
    scale = torch.rand(5) / 30 + 0.001
    assert torch.equal(learned_fake_quantize(x, scale, *GRID, 1), fake_quantize(x, scale, *GRID, 1))


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_inside_the_gradient_is_the_rounding_error_in_steps(axis):
    torch.manual_seed(0)
    x, g = torch.randn(4, 4, 4).double(), torch.randn(4, 4, 4).double()
    scale = (torch.rand(4).double() / 30 + 0.001).requires_grad_()
    learned_fake_quantize(x, scale, *GRID, axis).backward(g)
    shape = [1, 1, 1]
    shape[axis] = 4
    ratio = x / scale.detach().view(shape)
    codes = torch.floor(ratio + 0.5)
    slope = torch.where(codes < -128, -128.0, torch.where(codes > 127, 127.0, codes - ratio))
    want = (slope * g).sum([d for d in range(3) if d != axis % 3])
    # both sum 16 float64 terms, in another order
    torch.testing.assert_close(scale.grad, want, rtol=1e-12, atol=1e-12)


def test_the_scale_moves_towards_less_error():
    """Following the gradient from a scale that is far too large or small lowers the error."""
    torch.manual_seed(0)
    x = torch.randn(5000)
    for start in (0.002, 1.0):
        scale = torch.tensor([start], requires_grad=True)
        before = (learned_fake_quantize(x, scale, *GRID) - x).square().mean()
        for _ in range(200):
            (grad,) = torch.autograd.grad(
                (learned_fake_quantize(x, scale, *GRID) - x).square().mean(), scale
            )
            with torch.no_grad():
                scale -= 0.02 * scale * grad.sign()
        after = (learned_fake_quantize(x, scale, *GRID) - x).square().mean()
        assert after < before / 20


def test_the_factor_multiplies_the_gradient_of_the_scale_alone():
    x = torch.tensor([100.0, 0.3], requires_grad=True)
    scale = torch.tensor([0.5], requires_grad=True)
    learned_fake_quantize(x, scale, *GRID, factor=0.25, inside=False).sum().backward()
    assert x.grad.tolist() == [0, 1]
    assert scale.grad.tolist() == [127 / 4]


def test_only_what_is_asked_for_gets_a_gradient():
    scale = torch.tensor([0.5], requires_grad=True)
    learned_fake_quantize(torch.tensor([100.0]), scale, *GRID).sum().backward()
    assert scale.grad.tolist() == [127]
    x = torch.tensor([1.0], requires_grad=True)
    learned_fake_quantize(x, scale.detach(), *GRID).sum().backward()
    assert x.grad.tolist() == [1]


def test_infinities_saturate_and_nan_adds_nothing():
    """A03."""
    x = torch.tensor([math.inf, -math.inf, math.nan], requires_grad=True)
    scale = torch.tensor([0.5], requires_grad=True)
    y = learned_fake_quantize(x, scale, *GRID)
    y.backward(torch.tensor([1.0, 10.0, 100.0]))
    assert y[:2].tolist() == [63.5, -64.0]
    assert y[2].isnan()
    assert x.grad.tolist() == [0, 0, 0]
    assert scale.grad.tolist() == [127 - 1280]


def test_scales_that_do_not_fit_are_refused():
    with pytest.raises(ArgumentError, match="2 scales do not fit axis 0"):
        learned_fake_quantize(torch.ones(3, 2), torch.ones(2), *GRID, 0)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("inside", [True, False])
def test_tensors_of_many_blocks_have_the_same_gradients(layout, inside):
    torch.manual_seed(0)
    x = (torch.randn(2, 8, 90, 100) * 3).to(memory_format=layout).requires_grad_()
    x.data[0, 0, 0, :3] = torch.tensor([math.inf, -math.inf, math.nan])
    g = torch.randn(2, 8, 90, 100).to(memory_format=layout)
    scale = torch.tensor([0.02], requires_grad=True)
    learned_fake_quantize(x, scale, *GRID, inside=inside).backward(g)
    twin = torch.full((8,), 0.02, requires_grad=True)
    other = x.detach().contiguous().requires_grad_()
    learned_fake_quantize(other, twin, *GRID, 1, inside=inside).backward(g.contiguous())
    assert torch.equal(x.grad, other.grad)
    # one float32 rounding of each channel's sum
    torch.testing.assert_close(
        scale.grad[0], twin.grad.double().sum().float(), rtol=1e-5, atol=0.01
    )
