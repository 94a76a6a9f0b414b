"""conv_transpose2d: output size, groups, one scale per real output channel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from qtune.arith.quantize import fake_quantize, scale_from_absmax
from qtune.dtype import qint8
from qtune.ops import registry
from qtune.ops.gemm.channels import channel_unview, channel_view
from qtune.ops.gemm.transposed import run_float
from qtune.ops.kernel import QConst
from tests.ops.gemm.eager import EagerContext, convert_node, lower, quantized, weight_constant
from tests.ops.gemm.test_conv2d import bound_module


@pytest.mark.parametrize(
    "module",
    [
        nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2),
        nn.ConvTranspose2d(4, 3, (3, 2), stride=(1, 2), dilation=(2, 1), bias=False),
        nn.ConvTranspose2d(4, 4, 4, stride=2, padding=1, groups=4),
    ],
    ids=str,
)
def test_lowered_node_gives_the_modules_own_bits(module: nn.Module) -> None:
    from tests.ops.gemm.eager import run_lowered

    x = torch.randn(2, 4, 5, 4)
    entry, tensors, attrs = bound_module(module, x)
    expected = module(x)
    assert torch.equal(entry.float_kernel(*tensors, **attrs), expected)  # type: ignore[misc]
    assert torch.equal(run_lowered(lower(entry, tensors, attrs)), expected)


def test_output_size_of_the_call_becomes_output_padding() -> None:
    module = nn.ConvTranspose2d(2, 3, 3, stride=2)
    x = torch.randn(1, 2, 4, 4)
    found = registry.find_module(nn.ConvTranspose2d)
    assert found is not None
    entry, target = found
    bound = target.bind(module, x, output_size=[10, 9])
    tensors = [x, module.weight, module.bias]
    expected = module(x, output_size=[10, 9])
    assert torch.equal(entry.float_kernel(*tensors, **bound.attrs), expected)  # type: ignore[misc]
    assert lower(entry, tensors, bound.attrs).attrs["output_padding"] == (1, 0)


def test_scales_lie_on_output_channels_and_keep_the_small_one() -> None:
    """A12: axis 0 would give the small channel an error of 0.216."""
    weight = np.ones((3, 2, 1, 1), dtype=np.float32)
    weight[:, 1] = 100.0
    entry = registry.spec("conv_transpose2d")
    assert entry.weight_axis is not None
    axis = entry.weight_axis({"groups": 1})
    absmax = np.abs(weight).max(axis=tuple(i for i in range(4) if i != axis))
    scale = scale_from_absmax(absmax, qint8)
    # float32 scale or value against the float64 formula: the last bits differ
    np.testing.assert_allclose(scale, [2 / 255, 200 / 255], rtol=1e-6)
    error = np.abs(fake_quantize(weight, scale, qint8, axis) - weight)
    assert error[:, 0].max() <= 0.0040


def grouped_channel(weight: np.ndarray[Any, Any], groups: int, channel: int) -> Any:
    """The weights that make output ``channel``, straight from torch's layout."""
    inputs, outputs = weight.shape[:2]
    group, column = divmod(channel, outputs)
    per_group = inputs // groups
    return weight[group * per_group : (group + 1) * per_group, column]


@pytest.mark.parametrize(("inputs", "outputs", "groups"), [(4, 6, 1), (4, 6, 2), (6, 6, 6)])
def test_channel_view_has_each_real_output_channel_on_axis_1(
    inputs: int, outputs: int, groups: int
) -> None:
    """A10 and A12 with groups."""
    weight = np.random.default_rng(0).standard_normal((inputs, outputs // groups, 3, 2))
    view = channel_view(weight, groups)
    assert view.shape == (inputs // groups, outputs, 3, 2)
    for channel in range(outputs):
        np.testing.assert_array_equal(view[:, channel], grouped_channel(weight, groups, channel))
    np.testing.assert_array_equal(channel_unview(view, groups), weight)


def test_gradient_flows_through_the_view() -> None:
    weight = torch.randn(4, 3, 2, 2, requires_grad=True)
    channel_unview(channel_view(weight, 2) * 2.0, 2).sum().backward()
    assert weight.grad is not None
    assert torch.equal(weight.grad, torch.full_like(weight, 2.0))


def test_grouped_weight_quantizes_each_output_channel_with_its_own_scale() -> None:
    """Group scales differ a hundredfold; the integer result stays one step away per channel."""
    rng = np.random.default_rng(1)
    groups, x = 2, rng.standard_normal((1, 4, 3, 3)).astype(np.float32)
    weight = rng.standard_normal((4, 3, 2, 2)).astype(np.float32)
    weight[:2] *= 100.0
    view = channel_view(weight, groups)
    scale = scale_from_absmax(np.abs(view).max(axis=(0, 2, 3)), qint8)
    constant = weight_constant(weight, scale, qint8, 1, groups)
    assert isinstance(constant, QConst)
    assert constant.scale.shape == (6,)
    rebuilt = channel_view(constant.codes, groups) * scale[:, None, None]
    assert (np.abs(rebuilt - view) <= scale[:, None, None] * 0.51).all()
    entry = registry.spec("conv_transpose2d")
    attrs = {
        "stride": (1, 1), "padding": (0, 0), "output_padding": (0, 0), "groups": 2,
        "dilation": (1, 1), "output_size": None,
    }  # fmt: skip
    node = lower(entry, [torch.from_numpy(x), torch.from_numpy(weight), None], attrs)
    s_x = float(scale_from_absmax(np.abs(x).max(), qint8))
    ctx = EagerContext()
    result = convert_node(ctx, node, (quantized(x, s_x, qint8), constant)).dequantize(ctx)
    x_q = torch.from_numpy(fake_quantize(x, s_x, qint8)).double()
    w_q = channel_unview(fake_quantize(view, scale, qint8, 1), groups)
    expected = F.conv_transpose2d(x_q, torch.from_numpy(w_q.copy()).double(), groups=2)
    # Exact sums; the two differ by float32 rounding of the result and of code * scale.
    np.testing.assert_allclose(result.value.array, expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    ("march", "weight", "stride", "words"),
    [
        ("nash", (4, 3, 1, 1), (1, 1), "use a convolution"),
        ("nash", (4, 3, 2, 2), (2, 2), "smaller than the kernel"),
        ("bayes", (4, 3, 15, 2), (2, 2), "kernel size is 15"),
        ("bernoulli", (4, 3, 3, 3), (1, 1), "at least 2 is needed"),
        ("nash", (4096, 3, 3, 3), (2, 2), "input channels is 4096"),
    ],
)
def test_march_limits(
    march: str, weight: tuple[int, ...], stride: tuple[int, int], words: str
) -> None:
    entry = registry.spec("conv_transpose2d")
    (rule,) = (rule for rule in entry.march if march in rule.series)
    attrs = {"stride": stride, "dilation": (1, 1), "groups": 1, "padding": (0, 0)}
    shapes = ((1, weight[0], 8, 8), weight, None)
    assert rule.check is not None
    assert words in (rule.check(attrs, shapes, (1, 3, 9, 9)) or "")  # type: ignore[arg-type]


@pytest.mark.parametrize("pads", [(2, 0, 0, 1), (0, 2, 1, 0), (2, 2, 0, 0), (1, 1, 1, 1)])
@pytest.mark.parametrize("extra", [(0, 0), (0, 1)])
def test_imported_pads_may_differ_on_both_sides(
    pads: tuple[int, int, int, int], extra: tuple[int, int]
) -> None:
    """The whole result with the pads cut off, however much they exceed the stride."""
    rng = np.random.default_rng(0)
    x, w = (torch.from_numpy(rng.normal(size=s)) for s in ((1, 2, 4, 5), (2, 3, 3, 3)))
    attrs = {"strides": (1, 2), "pads": pads, "output_padding": extra}
    whole = F.conv_transpose2d(x, w, stride=(1, 2), output_padding=extra)
    top, left, bottom, right = pads
    height, width = whole.shape[2:]
    expected = whole[:, :, top : height - bottom, left : width - right]
    # float64 sums of at most 18 terms in another order
    torch.testing.assert_close(run_float(attrs, x, w), expected, rtol=1e-13, atol=1e-13)
