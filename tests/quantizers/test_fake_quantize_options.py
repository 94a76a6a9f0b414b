"""The documented arguments of FakeQuantize: each does what its name says, or is refused."""

import inspect

import pytest
import torch

from qtune.dtype import qint8
from qtune.errors import ArgumentError
from qtune.quantizers.fake_quantize import FakeQuantize
from qtune.quantizers.observer import MinMaxObserver, MovingAverageMinMaxObserver
from qtune.quantizers.state import FakeQuantState, set_fake_quantize


def ready(**options):
    fq = FakeQuantize(**options).eval()
    fq.set_qparams(0.5)
    return fq


def test_arguments_have_the_documented_order_and_defaults():
    found = inspect.signature(FakeQuantize).parameters
    documented = {
        "observer": MovingAverageMinMaxObserver,
        "saturate": None,
        "in_place": False,
        "compat_mask": True,
        "channel_len": None,
        "fast_training": True,
    }
    assert {n: found[n].default for n in list(found)[:6]} == documented
    fq = FakeQuantize(MinMaxObserver, True, False, True, 3, True, ch_axis=0, dtype=qint8)
    assert fq.scale.shape == (3,)


@pytest.mark.parametrize(("saturate", "outside"), [(None, 0), (True, 0), (False, 1)])
@pytest.mark.parametrize("size", [1, 9000])
def test_saturate_decides_the_gradient_of_what_leaves_the_grid(saturate, outside, size):
    fq = ready(saturate=saturate)
    x = torch.tensor([1.2, 900.0, -900.0]).repeat(size).requires_grad_()
    y = fq(x)
    y.sum().backward()
    assert y[:3].tolist() == [1.0, 63.5, -64.0]
    assert x.grad[:3].tolist() == [1, outside, outside]


def test_in_place_overwrites_the_input_where_no_gradient_is_recorded():
    fq = ready(in_place=True)
    x = torch.tensor([1.2, 900.0, -900.0])
    assert fq(x) is x
    assert x.tolist() == [1.0, 63.5, -64.0]
    strided = torch.tensor([[1.2, 9.0], [0.7, 9.0]])
    fq(strided[:, 0])
    assert strided.tolist() == [[1.0, 9.0], [0.5, 9.0]]


def test_in_place_leaves_the_input_of_a_recorded_gradient():
    fq = ready(in_place=True)
    x = torch.tensor([1.2, 900.0], requires_grad=True)
    y = fq(x * 1)
    y.sum().backward()
    assert x.tolist() == [torch.tensor(1.2).item(), 900.0]
    assert x.grad.tolist() == [1, 0]


def test_without_in_place_the_input_is_left_alone():
    x = torch.tensor([1.2, 900.0])
    before = x.clone()
    ready()(x)
    assert torch.equal(x, before)


class Kept:
    """Bytes that autograd keeps for backward."""

    def __init__(self):
        self.bytes = 0

    def pack(self, tensor):
        self.bytes += tensor.numel() * tensor.element_size()
        return tensor


@pytest.mark.parametrize(("compat_mask", "most"), [(True, 1 / 8), (False, 1)])
@pytest.mark.parametrize("size", [1000, 20_000])
def test_compat_mask_keeps_a_bit_for_each_element(compat_mask, most, size):
    fq, kept = ready(compat_mask=compat_mask), Kept()
    x = (torch.randn(size) * 40).requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(kept.pack, lambda tensor: tensor):
        y = fq(x)
    y.backward(torch.ones(size))
    assert size * most <= kept.bytes <= size * most + 8
    codes = torch.floor(x.detach() / 0.5 + 0.5)
    assert torch.equal(x.grad, ((codes >= -128) & (codes <= 127)).float())


def test_fast_training_is_always_on():
    with pytest.raises(ArgumentError, match="fast_training=False is not offered"):
        FakeQuantize(fast_training=False)


def test_the_options_hold_in_training_and_survive_with_args():
    fq = FakeQuantize.with_args(saturate=False, averaging_constant=0)()
    set_fake_quantize(fq, FakeQuantState.QAT)
    fq(torch.ones(3))
    x = torch.tensor([5.0], requires_grad=True)
    fq(x).sum().backward()
    assert x.grad.tolist() == [1]
