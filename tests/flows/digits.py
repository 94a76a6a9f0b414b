"""The digits data and net of ``examples/digits``, and what training a prepared net takes."""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qtune.nn.prepared import PreparedModel
from qtune.quantization import FakeQuantState, auto_calibrate, prepare, set_fake_quantize


def _load() -> ModuleType:
    path = Path(__file__).parents[2] / "examples" / "digits" / "digits_model.py"
    spec = importlib.util.spec_from_file_location("flows_digits_model", path)
    if spec is None or spec.loader is None:
        raise ImportError(path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


example: Any = _load()
"""The module ``digits_model`` of the example."""

POINT = 0.01


def batches() -> list[Tensor]:
    found: list[Tensor] = example.calibration_batches()
    return found


def accuracy(model: Any) -> float:
    """Share of the 497 hold-out digits that ``model`` reads right."""
    found: float = example.accuracy(model)
    return found


def calibrated(model: nn.Module, **options: Any) -> PreparedModel:
    return auto_calibrate(prepare(model, batches()[0], **options), batches())


def fit(
    model: nn.Module, epochs: int, lr: float, backward: Callable[[Tensor, Tensor], Any]
) -> None:
    """The trainer of a float model, for its QAT model too; ``backward`` takes images and labels."""
    torch.manual_seed(0)
    (images, labels), _ = example.split()
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    model.train()
    for _ in range(epochs):
        for index in torch.randperm(len(images)).split(64):
            optimizer.zero_grad()
            backward(images[index], labels[index])
            optimizer.step()
    model.eval()


def train_qat(
    model: PreparedModel,
    epochs: int = 5,
    lr: float = 2e-3,
    after_epoch: Callable[[int], Any] | None = None,
) -> PreparedModel:
    """The documented loop; ``after_epoch(i)`` may change the model."""
    torch.manual_seed(0)
    (images, labels), _ = example.split()
    for epoch in range(epochs):
        set_fake_quantize(model.train(), FakeQuantState.QAT)
        optimizer = torch.optim.Adam((v for v in model.parameters() if v.requires_grad), lr=lr)
        for index in torch.randperm(len(images)).split(64):
            optimizer.zero_grad()
            F.cross_entropy(model(images[index]), labels[index]).backward()
            optimizer.step()
        set_fake_quantize(model.eval(), FakeQuantState.VALIDATION)
        if after_epoch is not None:
            after_epoch(epoch)
    return model


def hard_for_int8(model: nn.Module) -> nn.Module:
    """The same float function with channels of ranges that are a factor of 300 apart.

    Between layers channel ``c`` is multiplied by ``k[c]`` and divided again by the next weight,
    which relu and max-pooling let through. One int8 scale for all channels loses the small ones.
    """
    hard: Any = copy.deepcopy(model)
    seeded = torch.Generator().manual_seed(0)

    def spread(channels: int) -> Tensor:
        values = torch.logspace(-1.25, 1.25, channels)
        return values[torch.randperm(channels, generator=seeded)]

    with torch.no_grad():
        first, second = spread(16), spread(32)
        for norm, factor in ((hard.stem[1], first), (hard.bn, first), (hard.body[1], second)):
            norm.weight.mul_(factor)
            norm.bias.mul_(factor)
        for layer, factor in ((hard.conv, first), (hard.body[0], first), (hard.head, second)):
            layer.weight.div_(factor.view(1, -1, *[1] * (layer.weight.dim() - 2)))
    return hard.eval()  # type: ignore[no-any-return]
