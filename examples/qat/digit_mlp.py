"""A small net on scikit-learn's digits that int8 calibration hurts; the training that heals it."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

from qtune.nn.prepared import PreparedModel
from qtune.quantization import (
    FakeQuantState,
    load_calib_state_dict,
    prepare,
    set_fake_quantize,
)

TRAIN = 1_300  # of 1,797 images; the others are the hold-out set
HIDDEN = 48


class DigitMlp(nn.Module):
    """64 pixels to 10 logits."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, HIDDEN)
        self.act = nn.ReLU()
        self.second = nn.Linear(HIDDEN, HIDDEN)
        self.act2 = nn.ReLU()
        self.head = nn.Linear(HIDDEN, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.act2(self.second(self.act(self.first(x)))))


def split() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """(training, hold-out), in one shuffled order."""
    digits = load_digits()
    order = torch.arange(len(digits.target)) * 701 % len(digits.target)  # 701 and 1797 are coprime
    images = torch.tensor(digits.data, dtype=torch.float32)[order] / 8 - 1
    labels = torch.tensor(digits.target)[order]
    return (images[:TRAIN], labels[:TRAIN]), (images[TRAIN:], labels[TRAIN:])


def calibration() -> list[Tensor]:
    """Ten batches of training images."""
    return list(split()[0][0][:320].split(32))


def top1(model: Any) -> float:
    """Share of the hold-out images that ``model`` reads right."""
    _, (images, labels) = split()
    return float((model(images).argmax(1) == labels).float().mean())


def fit(model: nn.Module, epochs: int, lr: float) -> None:
    """Train in place."""
    (images, labels), _ = split()
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, epochs)
    generator = torch.Generator().manual_seed(0)
    for _ in range(epochs):
        for index in torch.randperm(TRAIN, generator=generator).split(32):
            optimizer.zero_grad()
            F.cross_entropy(model(images[index]), labels[index]).backward()
            optimizer.step()
        schedule.step()


def float_model() -> DigitMlp:
    """Trained; then the ranges of its hidden channels are spread over ten octaves.

    What ``first`` multiplies by a power of two, ``second`` divides by it, so the float function
    stays. Trained nets, depthwise ones above all, come with such channels: int8 has one scale for
    all of them, and the small ones are left with a code or two.
    """
    torch.manual_seed(0)
    model = DigitMlp()
    fit(model, epochs=15, lr=4e-3)
    factors = 2.0 ** torch.linspace(0, 10, HIDDEN).round()
    with torch.no_grad():
        model.first.weight *= factors[:, None]
        model.first.bias *= factors
        model.second.weight /= factors
    return model.eval()


def finetuned(model: nn.Module, calibrated: nn.Module) -> PreparedModel:
    """``model`` trained for some more epochs with the rounding in the loop.

    It starts from the scales of ``calibrated``, which stays as it is.
    """
    qat = prepare(model, calibration()[0])
    load_calib_state_dict(qat, calibrated.state_dict())
    set_fake_quantize(qat.train(), FakeQuantState.QAT)
    fit(qat, epochs=8, lr=5e-3)
    set_fake_quantize(qat.eval(), FakeQuantState.VALIDATION)
    return qat
