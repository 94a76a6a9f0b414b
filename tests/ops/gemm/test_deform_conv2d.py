"""deform_conv2d: against a convolution, against taps by hand, whole models, torchvision's names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from qtune.errors import ArgumentError
from qtune.nn import DeformConv2d
from qtune.nn.qat import iter_stubs
from qtune.ops.gemm.deform_layer import deform_conv2d
from qtune.ops.registry import find_function, find_module, spec
from tests.ops.steps import steps_apart
from tests.ops.whole import quiet, whole

__all__ = ["quiet"]

SAMPLES = 4.0
"""Every sample is rounded to int8: half a step each, in sums of random sign."""


@pytest.mark.parametrize("groups", [1, 2])
def test_without_offsets_it_is_a_convolution(groups: int) -> None:
    layer = DeformConv2d(4, 6, (3, 2), stride=2, padding=(1, 0), dilation=(1, 2), groups=groups)
    x = torch.randn(2, 4, 7, 8)
    geometry: Any = (layer.stride, layer.padding, layer.dilation, groups)
    expected = F.conv2d(x, layer.weight, layer.bias, *geometry)
    offset = torch.zeros(2, 2 * 6, *expected.shape[2:])
    # Sampling at whole positions in float32 is off by the rounding of normalised coordinates.
    torch.testing.assert_close(layer(x, offset), expected, rtol=1e-4, atol=1e-4)


def by_hand(
    x: np.ndarray[Any, Any], offset: Any, weight: Any, mask: Any, padding: int, parts: int
) -> np.ndarray[Any, Any]:
    """Stride 1, dilation 1, groups 1, one loop per index; (dy, dx) of each tap of each group."""
    batch, channels, height, width = x.shape
    outputs, _, kh, kw = weight.shape
    out = np.zeros((batch, outputs, *offset.shape[2:]))
    frame = np.pad(x, [(0, 0), (0, 0), (50, 50), (50, 50)])
    for n, o, c, i, j in np.ndindex(batch, outputs, channels, kh, kw):
        group = c // (channels // parts)
        tap = (group * kh + i) * kw + j
        for row, column in np.ndindex(*offset.shape[2:]):
            y = row - padding + i + offset[n, 2 * tap, row, column] + 50
            z = column - padding + j + offset[n, 2 * tap + 1, row, column] + 50
            y0, z0 = int(np.floor(y)), int(np.floor(z))
            dy, dz = y - y0, z - z0
            value = frame[n, c, y0 : y0 + 2, z0 : z0 + 2] * np.outer([1 - dy, dy], [1 - dz, dz])
            out[n, o, row, column] += weight[o, c, i, j] * value.sum() * mask[n, tap, row, column]
    return out


@pytest.mark.parametrize("parts", [1, 2])
def test_offsets_move_each_tap_and_masks_weigh_it(parts: int) -> None:
    torch.manual_seed(parts)
    x, weight = torch.randn(1, 2, 4, 5), torch.randn(2, 2, 2, 3)
    offset = torch.randn(1, parts * 12, 5, 5) * 2
    mask = torch.rand(1, parts * 6, 5, 5)
    geometry: Any = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 1}
    doubles = [t.double() for t in (x, offset, weight, mask)]
    found = deform_conv2d(*doubles[:3], None, doubles[3], **geometry)
    expected = by_hand(*(t.numpy() for t in doubles), 1, parts)
    # float64, sampled at normalized positions and summed in another order
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-9, atol=1e-9)


class Modulated(nn.Module):
    """Offsets and masks from convolutions, as in deformable convolution v2."""

    def __init__(self, parts: int, masked: bool) -> None:
        super().__init__()
        self.offset = nn.Conv2d(4, 18 * parts, 3, padding=1)
        self.mask = nn.Conv2d(4, 9 * parts, 3, padding=1) if masked else None
        self.deform = DeformConv2d(4, 6, 3, padding=1, groups=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = None if self.mask is None else torch.sigmoid(self.mask(x))
        return torch.tanh(self.deform(x, self.offset(x), mask))


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("parts", [1, 2])
def test_modulated_model_runs_in_integers(parts: int, masked: bool) -> None:
    result = whole(Modulated(parts, masked), torch.randn(2, 4, 6, 7))
    stubs = {f"{name} {port}": str(stub.dtype) for name, port, stub in iter_stubs(result.calib)}
    assert stubs["offset output"] == "qint16"
    if masked:
        assert stubs["_generated_sigmoid_0 output"] == "qint8"
    operators = [node.op_type for node in result.quantized.model.graph]
    assert "QSampleBilinear" in operators
    assert ("QConv16x8" if masked else "QConv") in operators
    assert steps_apart(result) <= SAMPLES


def test_last_layer_has_a_high_precision_output() -> None:
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.deform = DeformConv2d(2, 3, 2)

        def forward(self, x: torch.Tensor, offset: torch.Tensor) -> torch.Tensor:
            return self.deform(x, offset)

    result = whole(Last(), torch.randn(1, 2, 5, 5), torch.randn(1, 8, 4, 4))
    assert "QConvAcc" in [node.op_type for node in result.quantized.model.graph]
    (fake,), (integer,) = result.fake(), result.integer()
    # Only the 8 samples are rounded, each by a step at most here, times weights below 0.36.
    step = float({n: s for n, _, s in iter_stubs(result.calib)}["_input_0_quant"].scale)
    assert float((fake - integer).abs().max()) <= 8 * step * 0.36


def test_limits_of_nash() -> None:
    """toolchain_facts 4.2."""
    (rule,) = spec("deform_conv2d").march
    assert rule.series == ("nash",)
    assert rule.operands["offset"] == ("qint16",)
    assert rule.check is not None
    attrs = {"stride": (1, 1), "dilation": (1, 1), "groups": 1}

    def reason(kernel: int, parts: int, **more: Any) -> str:
        shapes = [
            (1, 4, 9, 9),
            (1, 2 * parts * kernel**2, 9, 9),
            (4, 4, kernel, kernel),
            None,
            None,
        ]
        return str(rule.check(attrs | more, shapes, (1, 4, 9, 9)))  # type: ignore[misc]

    assert reason(8, 2) == "None"
    assert "kernel" in reason(9, 1)
    assert "offset groups" in reason(1, 3)
    assert "stride" in reason(3, 1, stride=(2, 1))
    assert "dilation" in reason(3, 1, dilation=(1, 2))


def test_wrong_channels_are_named() -> None:
    layer = DeformConv2d(2, 3, 3)
    with pytest.raises(ArgumentError, match="17 channels"):
        layer(torch.randn(1, 2, 5, 5), torch.zeros(1, 17, 3, 3))
    with pytest.raises(ArgumentError, match="groups=2"):
        DeformConv2d(3, 4, 3, groups=2)


def test_layer_of_torchvision_is_known_by_its_name_without_the_package() -> None:
    theirs = type("DeformConv2d", (DeformConv2d,), {"__module__": "torchvision.ops.deform_conv"})
    other = type("DeformConv2d", (nn.Module,), {"__module__": "torchvision.ops.deform_conv"})
    for cls in (theirs, other):
        found = find_module(cls)
        assert found is not None
        assert found[0].name == "deform_conv2d"
        assert found[1].cls in (cls, DeformConv2d)
    assert find_module(type("DeformConv2d", (nn.Module,), {"__module__": "mine"})) is None


@pytest.fixture
def their_operator() -> Iterator[Any]:
    """An operator of the name and signature that torchvision registers."""
    pairs = ("stride", "pad", "dilation")
    sizes = [*(f"{name}_{axis}" for name in pairs for axis in "hw"), "groups", "offset_groups"]
    tensors = ", ".join(f"Tensor {name}" for name in ("input", "weight", "offset", "mask", "bias"))
    numbers = ", ".join(f"SymInt {name}" for name in sizes)
    library = torch.library.Library("torchvision", "FRAGMENT")
    library.define(f"deform_conv2d({tensors}, {numbers}, bool use_mask) -> Tensor")

    def run(x: Any, w: Any, offset: Any, mask: Any, bias: Any, *rest: Any) -> torch.Tensor:
        stride, padding, dilation = rest[:2], rest[2:4], rest[4:6]
        given = mask if rest[-1] else None
        geometry: Any = {"stride": stride, "padding": padding, "dilation": dilation}
        return deform_conv2d(x, offset, w, bias, given, **geometry, groups=rest[6])

    library.impl("deform_conv2d", run, "CPU")
    yield torch.ops.torchvision.deform_conv2d
    library._destroy()


def test_operator_of_torchvision_is_quantized(their_operator: Any) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.offset = nn.Conv2d(3, 18, 3, padding=1)
            self.w = nn.Parameter(torch.randn(4, 3, 3, 3) / 5)
            self.b = nn.Parameter(torch.randn(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            none = x.new_zeros((x.shape[0], 1))
            y = their_operator(
                x, self.w, self.offset(x), none, self.b, 1, 1, 1, 1, 1, 1, 1, 1, False
            )
            return torch.relu(y)

    assert find_function(their_operator) is not None
    assert find_function(their_operator.default) is not None
    result = whole(Net(), torch.randn(1, 3, 6, 5))
    assert steps_apart(result) <= SAMPLES
