"""The single modules of torch's own test suite (``torch.testing._internal``)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import nn

from qtune.capture.inputs import Inputs

from .runner import Architecture


def architectures() -> Iterator[Architecture]:
    """One for each sample of each module. Needs expecttest, as torch's own suite does."""
    from torch.testing._internal.common_modules import module_db

    for info in module_db:
        yield from _samples(info)


def _samples(info: Any) -> Iterator[Architecture]:
    for index, sample in enumerate(_made(info)):
        name = f"{info.name} {index}" + (f" {sample.desc}" if sample.desc else "")
        yield Architecture(
            name=name.strip(),
            build=partial(_build, info, index),
            example=partial(_example, info, index),
        )


def _made(info: Any) -> list[Any]:
    torch.manual_seed(0)
    return list(
        info.module_inputs_func(
            info, device="cpu", dtype=torch.float32, requires_grad=False, training=False
        )
    )


def _build(info: Any, index: int) -> nn.Module:
    given = _made(info)[index].constructor_input
    module: nn.Module = info.module_cls(*given.args, **given.kwargs)
    model = Called(module.float())  # the suite makes random numbers of FractionalMaxPool in float64
    if "Lazy" in info.name:
        call = _example(info, index)
        model(*call.args, **call.kwargs)
    return model


def _example(info: Any, index: int) -> Inputs:
    given = _made(info)[index].forward_input
    return Inputs(*given.args, **given.kwargs)


class Called(nn.Module):
    """A model of one module."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)
