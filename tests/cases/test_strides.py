"""A19: non-contiguous tensors."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from qtune import arith, qint8, qint16
from qtune.arith_fast.fake_quantize import quantize_held
from qtune.quantization import FakeQuantize, FakeQuantState
from qtune.quantization.observer_v2 import KLObserver, MinMaxObserver, MSEObserver

from .steps import calibrated, quantized_module, ref_fq, run

VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "chunk": lambda b: b.chunk(2, 1)[1],
    "transpose": lambda b: b.transpose(1, 3),
    "strided": lambda b: b[:, ::2],
    "expand": lambda b: b[:1].expand(4, 8, 6, 6),
    "flip": lambda b: b.flip(0),
    "channels_last": lambda b: b.contiguous(memory_format=torch.channels_last),
    "offset": lambda b: b[1:, 3:, 2:, 1:],
    "permute": lambda b: b.permute(3, 0, 2, 1),
}
EACH = pytest.mark.parametrize("view", VIEWS)


def both(view: str) -> tuple[Tensor, Tensor]:
    x = VIEWS[view](torch.randn(2, 8, 6, 6))
    return x, x.contiguous(memory_format=torch.contiguous_format).clone()


@EACH
@pytest.mark.parametrize("axis", [-1, 0, 1, 2, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.half, torch.float64])
def test_fake_quantize_of_any_view_equals_that_of_its_copy(
    view: str, axis: int, dtype: torch.dtype
) -> None:
    """A19 per tensor and per channel on each axis."""
    x, copy = (t.to(dtype) for t in both(view))
    channels = 1 if axis == -1 else x.shape[axis]
    fq = FakeQuantize(MinMaxObserver, ch_axis=axis, channel_len=None if axis == -1 else channels)
    scale = torch.rand(channels) * 0.05 + 0.01
    fq.set_qparams(scale)
    fq.state = FakeQuantState.VALIDATION
    y = fq(x)
    assert torch.equal(y, fq(copy))
    assert y.shape == x.shape
    if dtype is torch.float32:
        shape = [1] * 4
        shape[axis] = channels
        assert torch.equal(y, ref_fq(copy, scale.reshape(shape if axis >= 0 else 1)))


@EACH
@pytest.mark.parametrize("observer", [MinMaxObserver, MSEObserver, KLObserver])
@pytest.mark.parametrize("axis", [-1, 0, 1, 3])
def test_observers_see_the_same_values(view: str, observer: type, axis: int) -> None:
    """A19 the same scale."""
    x, copy = both(view)
    first, second = observer(ch_axis=axis), observer(ch_axis=axis)
    first(x)
    second(copy)
    assert torch.equal(first.calculate_scale(), second.calculate_scale())
    if observer is MinMaxObserver and axis == -1:
        assert float(first.max_val) == float(copy.max())


@EACH
@pytest.mark.parametrize("dtype", [qint8, qint16], ids=str)
def test_integer_quantize_of_any_view(view: str, dtype: object) -> None:
    """A19 the fast path and the reference."""
    x, copy = both(view)
    held = quantize_held(x, 0.05, dtype)
    assert torch.equal(held, quantize_held(copy, 0.05, dtype))
    codes = arith.quantize.quantize(x.numpy(), 0.05, dtype)
    offset = 128 if dtype is qint8 else 0
    np.testing.assert_array_equal(held.long().numpy() - offset, codes)


@pytest.mark.parametrize("view", ["chunk", "transpose", "strided", "expand", "flip", "permute"])
def test_every_stage_takes_any_view(view: str) -> None:
    """A19 prepared model, qat.bc and the integer model, also NumPy views."""
    x, copy = both(view)
    model = nn.Sequential(nn.Conv2d(x.shape[1], 4, 3), nn.ReLU(), nn.AvgPool2d(2), nn.Sigmoid())
    p = calibrated(model, x)
    assert torch.equal(run(p, x), run(p, copy))
    module = quantized_module(p, x)
    expected = module[0](copy)
    assert torch.equal(module[0](x), expected)
    assert torch.equal(module[0](x.numpy()), expected)
    name = module[0].inputs[0].name
    exact = module[0].run({name: x}, mode="reference")
    assert torch.equal(next(iter(exact.values())), expected)
