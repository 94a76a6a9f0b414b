"""A separable CNN that reads handwritten digits: model, weights, data, accuracy.

The weights lie beside it, so that every run tests the same model. ``python digit_reader.py`` trains
them anew.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

WEIGHTS = Path(__file__).with_suffix(".pt")
TRAIN = 1_300  # of 1,797 images; the others are the hold-out set


def block(cin: int, cout: int) -> nn.Sequential:
    """Depthwise 3x3, pointwise, batch norm, relu."""
    return nn.Sequential(
        nn.Conv2d(cin, cin, 3, padding=1, groups=cin, bias=False),
        nn.Conv2d(cin, cout, 1, bias=False),
        nn.BatchNorm2d(cout),
        nn.ReLU(),
    )


class DigitReader(nn.Module):
    """(N, 1, 8, 8) in [-1, 1] to 10 logits."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()
        )
        self.near = block(16, 32)
        self.pool = nn.MaxPool2d(2)
        self.far = block(32, 32)
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.far(self.pool(self.near(self.stem(x))))
        return self.head(x.mean((2, 3)))


def images_and_labels() -> tuple[Tensor, Tensor]:
    """All images in one shuffled order, which no random generator of a library decides."""
    digits = load_digits()
    order = torch.arange(len(digits.target)) * 701 % len(digits.target)  # 701 and 1797 are coprime
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 8.0 - 1.0
    return images[order], torch.tensor(digits.target)[order]


def trained() -> DigitReader:
    """The model with the weights of the repository."""
    model = DigitReader()
    model.load_state_dict(torch.load(WEIGHTS, weights_only=True))
    return model.eval()


def calibration() -> list[Tensor]:
    """Ten batches of training images."""
    return list(images_and_labels()[0][:320].split(32))


def holdout() -> Tensor:
    """64 images that the training never saw."""
    return images_and_labels()[0][TRAIN : TRAIN + 64]


def top1(model: Any) -> float:
    """Share of the hold-out images that ``model`` reads right."""
    images, labels = images_and_labels()
    return float((model(images[TRAIN:]).argmax(1) == labels[TRAIN:]).float().mean())


def train(epochs: int = 20) -> DigitReader:
    """Train from the beginning; about ten seconds on one core."""
    torch.manual_seed(0)
    model = DigitReader()
    images, labels = (part[:TRAIN] for part in images_and_labels())
    optimizer = torch.optim.Adam(model.parameters())
    steps = epochs * -(-TRAIN // 64)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, steps)
    for _ in range(epochs):
        for index in torch.randperm(TRAIN).split(64):
            optimizer.zero_grad()
            F.cross_entropy(model(images[index]), labels[index]).backward()
            optimizer.step()
            schedule.step()
    return model.eval()


if __name__ == "__main__":
    torch.save(train().state_dict(), WEIGHTS)
