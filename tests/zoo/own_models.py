"""Our own small networks in the styles of the zoos; they need no package."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from qtune.capture.inputs import Inputs

from .nets_images import MobileNet, Queries, ResidualNet, ShiftedWindows, UNet, VisionTransformer
from .nets_sequences import Bert, LanguageModel, Scan, Translator
from .runner import Architecture

IMAGE_NETS: list[tuple[str, Callable[[], nn.Module], list[tuple[int, int, int]]]] = [
    ("residual", ResidualNet, [(2, 32, 32), (3, 32, 32), (1, 40, 24)]),
    ("residual features", partial(ResidualNet, True), [(2, 32, 32), (1, 48, 32)]),
    ("inverted residual", MobileNet, [(2, 32, 32), (3, 32, 32), (1, 33, 21)]),
    ("vision transformer", VisionTransformer, [(2, 32, 32), (3, 32, 32), (1, 48, 32)]),
    ("shifted windows", ShiftedWindows, [(2, 32, 32), (3, 32, 32), (1, 64, 32)]),
    ("u-net", UNet, [(2, 32, 32), (3, 32, 32), (1, 48, 64)]),
    ("detection queries", Queries, [(2, 32, 32), (3, 32, 32), (1, 48, 64)]),
]


def architectures() -> Iterator[Architecture]:
    """All of them."""
    for name, build, sizes in IMAGE_NETS:
        yield _architecture(name, build, [partial(_images, *size) for size in sizes])
    tokens = [partial(_tokens, *size) for size in ((2, 6), (3, 6), (1, 9))]
    yield _architecture("encoder", Bert, tokens)
    yield _architecture("language model", LanguageModel, tokens)
    yield _architecture(
        "language model with past",
        LanguageModel,
        [partial(_continued, *size) for size in ((2, 5, 1), (3, 5, 1), (2, 7, 2))],
    )
    pairs = [partial(_pair, *size) for size in ((2, 6, 4), (3, 6, 4), (1, 8, 5))]
    yield _architecture("encoder and decoder", Translator, pairs)
    yield _architecture("scan", Scan, [partial(torch.randn, n, 5, 8) for n in (2, 3)])


def _architecture(
    name: str, build: Callable[[], nn.Module], calls: list[Callable[[], Any]]
) -> Architecture:
    return Architecture(name, build, calls[0], tuple(calls[1:]))


def _images(count: int, height: int, width: int) -> Tensor:
    return torch.randn(count, 3, height, width)


def _tokens(count: int, length: int) -> Inputs:
    mask = torch.ones(count, length, dtype=torch.long)
    mask[0, length - 2 :] = 0
    return Inputs(torch.randint(1, 30, (count, length)), attention_mask=mask)


def _continued(count: int, before: int, length: int) -> Inputs:
    past = tuple(tuple(torch.randn(count, 2, before, 4) for _ in range(2)) for _ in range(2))
    return Inputs(torch.randint(1, 30, (count, length)), past=past)


def _pair(count: int, source: int, target: int) -> tuple[Tensor, Tensor, Tensor]:
    padding = torch.zeros(count, source, dtype=torch.bool)
    padding[0, -1] = True
    return torch.randint(0, 30, (count, source)), torch.randint(0, 30, (count, target)), padding
