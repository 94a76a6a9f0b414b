"""Movement operators in prepared models: in-place assignment, concatenation, open batch sizes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import qtune
from qtune.bpu.convert import convert
from qtune.quantization import FakeQuantState, prepare, set_fake_quantize
from qtune.quantization.hbdk4 import export, pre_export


@pytest.fixture(autouse=True)
def _march() -> Iterator[None]:
    with qtune.march.march("nash-e"):
        yield


class InPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.conv2 = nn.Conv2d(4, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x)
        y.relu_()
        y += 1
        y[:, 0] *= 2
        return self.conv2(y)


class Cat(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.cat([a, b])


class Shuffle(nn.Module):
    """Sizes of the input in a view, as ShuffleNet writes them."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x)
        n, c, h, w = y.shape
        y = y.view(n, 2, c // 2, h, w).transpose(1, 2).contiguous().view(n, -1, h, w)
        return F.max_pool2d(y, 3, 2, ceil_mode=True).flatten(1)


def noise(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def test_in_place_assignment_reaches_the_next_layer_on_a_grid() -> None:
    """A15."""
    torch.manual_seed(0)
    model, x = InPlace().eval(), noise(2, 3, 6, 6)
    before = x.clone()
    prepared = prepare(model, x)
    set_fake_quantize(prepared, FakeQuantState._FLOAT)
    assert torch.equal(prepared(x), model(x))
    set_fake_quantize(prepared, FakeQuantState.CALIBRATION)
    prepared(x)
    set_fake_quantize(prepared, FakeQuantState.VALIDATION)
    seen: list[torch.Tensor] = []
    handle = prepared.conv2.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    prepared(x)
    handle.remove()
    (setitem,) = [m for m in prepared.modules() if getattr(m, "op", "") == "setitem"]
    steps = seen[0] / setitem.activation_post_process.scale
    assert (steps - steps.round()).abs().max() < 1e-3
    assert torch.equal(x, before)


@pytest.mark.parametrize("wide_first", [False, True])
def test_the_result_of_cat_covers_its_widest_operand(wide_first: bool) -> None:
    """A24."""
    narrow, wide = torch.linspace(-1, 1, 101), torch.linspace(-50, 50, 101)
    pair = (wide, narrow) if wide_first else (narrow, wide)
    prepared = prepare(Cat().eval(), pair)
    set_fake_quantize(prepared, FakeQuantState.CALIBRATION)
    prepared(*pair)
    set_fake_quantize(prepared, FakeQuantState.VALIDATION)
    (cat,) = [m for m in prepared.modules() if getattr(m, "op", "") == "cat"]
    scale = float(cat.activation_post_process.scale)
    # float32 scale or value against the float64 formula: the last bits differ
    assert scale == pytest.approx(2 * 50 / 255, rel=1e-6)
    integer = convert(export(pre_export(prepared), pair), "nash-e")[0](*pair)
    for result in (prepared(*pair).detach(), integer):
        error = (result - torch.cat(pair)).abs()
        start = 0 if wide_first else 101
        assert error[start : start + 101].max() <= scale / 2 * (1 + 1e-3)


def test_a_model_that_views_by_its_batch_size_runs_with_another_one() -> None:
    torch.manual_seed(0)
    x, other = noise(2, 3, 9, 9), noise(5, 3, 9, 9)
    prepared = prepare(Shuffle().eval(), x)
    set_fake_quantize(prepared, FakeQuantState.CALIBRATION)
    prepared(other)
    set_fake_quantize(prepared, FakeQuantState.VALIDATION)
    integer = convert(export(pre_export(prepared), x), "nash-e")
    result = integer[0](other)
    assert result.shape == (5, 8 * 16)
    expected = prepared(other)
    conv = prepared.get_submodule("conv")
    # One requantize between the two models: one step of the conv's grid.
    step = float(conv.activation_post_process.scale)
    assert (result - expected).abs().max() <= step * (1 + 1e-3)
