"""transformers: how the architectures of the two tables are made and called."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

from qtune.capture.inputs import Inputs

from .runner import Architecture
from .torchvision_stub import stubbed
from .transformers_text import SEQ2SEQ, TEXT
from .transformers_vision import DETECTORS, IMAGES, PAIRS, SOUND, SPECTRA

VOCABULARY = 90
REASONS: Mapping[str, str] = {}
"""Why an architecture may be further from the float model than numerics.md says."""


def architectures() -> Iterator[Architecture]:
    """All of them. Needs transformers."""
    for name, options in TEXT.items():
        yield _architecture(
            name, options, [partial(_tokens, *s) for s in ((2, 8), (3, 8), (1, 12))]
        )
    for name, options in SEQ2SEQ.items():
        yield _architecture(name, options, [partial(_pair, *s) for s in ((2, 8), (3, 8), (1, 12))])
    for name, (size, options) in {**IMAGES, **DETECTORS}.items():
        sizes = ((2, size), (3, size), (1, size + 32))
        yield _architecture(name, options, [partial(_pixels, *s) for s in sizes])
    for name, (size, options) in PAIRS.items():
        yield _architecture(name, options, [partial(_both, size, *s) for s in ((2, 8), (3, 12))])
    for name, options in SOUND.items():
        yield _architecture(name, options, [partial(_sound, *s) for s in ((2, 400), (1, 600))])
    for name, (shape, options) in SPECTRA.items():
        yield _architecture(name, options, [partial(_spectrum, n, shape) for n in (2, 3)])


def _architecture(
    name: str, options: Mapping[str, Any], calls: list[Callable[[], Any]]
) -> Architecture:
    build = partial(_build, name, options)
    return Architecture(name, build, calls[0], tuple(calls[1:]), REASONS.get(name, ""))


def _tokens(count: int, length: int) -> Inputs:
    mask = torch.ones(count, length, dtype=torch.long)
    mask[0, length - 2 :] = 0
    return Inputs(input_ids=_ids(count, length), attention_mask=mask)


def _pair(count: int, length: int) -> Inputs:
    return Inputs(
        **_tokens(count, length).kwargs, decoder_input_ids=_ids(count, max(length // 2, 1))
    )


def _pixels(count: int, size: int) -> Inputs:
    return Inputs(pixel_values=torch.randn(count, 3, size, size))


def _both(size: int, count: int, length: int) -> Inputs:
    return Inputs(**_tokens(count, length).kwargs, **_pixels(count, size).kwargs)


def _sound(count: int, length: int) -> Inputs:
    return Inputs(input_values=torch.randn(count, length))


def _spectrum(count: int, shape: tuple[int, ...]) -> Inputs:
    return Inputs(input_features=torch.randn(count, *shape), decoder_input_ids=_ids(count, 5))


def _ids(count: int, length: int) -> torch.Tensor:
    return torch.randint(3, VOCABULARY, (count, length))


def _build(name: str, options: Mapping[str, Any]) -> nn.Module:
    with stubbed():
        import transformers

        cls = getattr(transformers, name)
        own = copy.deepcopy(dict(options))  # configurations may change the nested ones
        model: nn.Module = cls(cls.config_class(**own))
    return model
