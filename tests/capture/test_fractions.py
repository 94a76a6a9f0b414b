"""Fractions of sizes: TF-style "same" padding and window counts replay at other sizes."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qtune.capture import capture
from qtune.errors import GuardError
from qtune.hbir.module import HbirModule
from qtune.march import march
from qtune.quantization import FakeQuantState, hbdk4, prepare, set_fake_quantize


@pytest.fixture
def nash() -> Iterator[None]:
    with march("nash-e"):
        yield


def data(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


class Net(nn.Module):
    def __init__(self, sizes: Callable[[Any], Any]) -> None:
        super().__init__()
        self.sizes = sizes

    def forward(self, x: Tensor) -> Tensor:
        return x.new_zeros(self.sizes(x.shape[1]))


FREE: dict[str, Callable[[Any], Any]] = {
    "ceil": lambda n: math.ceil(n / 3),
    "floor": lambda n: math.floor(n / 3 + 0.5),
    "trunc": lambda n: math.trunc(n * 0.7),
    "round": lambda n: round(n * 0.5),
    "negative": lambda n: -math.floor(-(n / 4)),
    "mixed": lambda n: math.ceil((n * 1.5 - 2) / (n / 2) + n % 2.5 + 7 // (n / 3)),
    "reflected": lambda n: math.floor(100.0 / n) + math.ceil(3 / (1 + n / 2)),
    "order": lambda n: math.ceil(max(n / 2, 0.5)),
}


@pytest.mark.parametrize("name", FREE)
def test_whole_numbers_made_of_fractions_follow_the_size(name: str) -> None:
    model = Net(FREE[name])
    recorded = capture(model, data(1, 7), fixed=True)
    for size in (2, 5, 7, 8, 33, 1001):
        assert recorded(data(1, size)).shape == model(data(1, size)).shape


GUARDED: dict[str, Callable[[Any], Any]] = {
    "int": lambda n: int(n / 2),
    "digits": lambda n: int(round(n / 3, 1)),
    "root": lambda n: int(math.sqrt(n / 2)),
    "power": lambda n: int((n / 2) ** 0.5),
    "text": lambda n: len(f"{n / 2}"),
    "whole": lambda n: 2 if (n / 2).is_integer() else 3,
    "order": lambda n: 2 if n / 2 > 3.75 else 3,
}


@pytest.mark.parametrize("name", GUARDED)
def test_what_leaves_is_guarded(name: str) -> None:
    model = Net(GUARDED[name])
    recorded = capture(model, data(1, 7), fixed=True)
    assert torch.equal(recorded(data(1, 7)), model(data(1, 7)))
    with pytest.raises(GuardError, match=r"x\.shape\[1\]"):
        recorded(data(1, 40))


def test_int_of_a_fraction_holds_for_sizes_with_the_same_result() -> None:
    recorded = capture(Net(lambda n: int(n / 2)), data(1, 6), fixed=True)
    assert recorded(data(1, 7)).shape == (3,)
    with pytest.raises(GuardError, match=r"trunc\(\(x\.shape\[1\] / 2\)\) == 3"):
        recorded(data(1, 8))


def test_a_fraction_is_a_float_to_the_model() -> None:
    seen: list[Any] = []

    def sizes(n: Any) -> int:
        seen.extend([isinstance(n / 2, float), isinstance(n / 2, int), n / 2 == 3.5, bool(n / 2)])
        return 1

    capture(Net(sizes), data(1, 7))
    assert seen == [True, False, True, True]


class Scaled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * (x.shape[1] / 2)


def test_a_fraction_given_to_an_operator_is_a_guarded_constant() -> None:
    recorded = capture(Scaled(), data(2, 6), fixed=True)
    assert torch.equal(recorded(data(5, 6)), data(5, 6) * 3.0)
    with pytest.raises(GuardError, match=r"x\.shape\[1\] / 2 == 3\.0"):
        recorded(data(2, 8))


class Same(nn.Module):
    """convolution with TensorFlow's "same" padding"""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, 2)

    def forward(self, x: Tensor) -> Tensor:
        pads = [max((math.ceil(n / 2) - 1) * 2 + 3 - n, 0) for n in x.shape[-2:]]
        height, width = pads
        x = F.pad(x, [width // 2, width - width // 2, height // 2, height - height // 2])
        return F.relu(self.conv(x))


@pytest.mark.usefixtures("nash")
@torch.no_grad()
def test_same_padding_prepares_at_any_size_and_exports_that_of_the_example() -> None:
    torch.manual_seed(0)
    model = Same().eval()
    prepared = prepare(model, data(1, 3, 8, 8))
    set_fake_quantize(prepared, FakeQuantState._FLOAT)
    for size in ((2, 3, 8, 8), (1, 3, 9, 12), (1, 3, 16, 7)):
        # the padding is another kernel's when it is fused: 1e-6 of values up to 3
        assert float((prepared(data(*size)) - model(data(*size))).abs().max()) < 1e-6
    set_fake_quantize(prepared, FakeQuantState.CALIBRATION)
    prepared(data(1, 3, 8, 8))
    set_fake_quantize(prepared, FakeQuantState.VALIDATION)
    module: HbirModule = hbdk4.export(prepared, data(1, 3, 9, 12))
    assert torch.equal(module[0](data(1, 3, 9, 12)), prepared(data(1, 3, 9, 12)))


def test_a_size_as_a_key_says_what_to_do() -> None:
    @functools.lru_cache
    def table(n: int) -> int:
        return n + 1

    recorded = capture(Net(table), data(1, 7), fixed=True)
    with pytest.raises(GuardError, match="the key of a lookup .* give an example of each such"):
        recorded(data(1, 8))
    both = capture(Net(table), [data(1, 7), data(1, 8)], fixed=True)
    assert [both(data(1, n)).shape[0] for n in (7, 8)] == [8, 9]
