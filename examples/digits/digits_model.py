"""A small CNN on scikit-learn's handwritten digits: data, model, training, evaluation."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

TRAIN = 1_300  # of 1,797 images; the rest is the hold-out set


class DigitsNet(nn.Module):
    """Two conv blocks with a residual connection, then a linear head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()
        )
        self.conv = nn.Conv2d(16, 16, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(16)
        self.pool = nn.MaxPool2d(2)
        self.body = nn.Sequential(
            nn.Conv2d(16, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU()
        )
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = F.relu(x + self.bn(self.conv(x)))
        x = self.body(self.pool(x))
        return self.head(x.mean((2, 3)))


def digits() -> tuple[Tensor, Tensor]:
    """All images, centred to [-1, 1], shape (1797, 1, 8, 8), and their labels."""
    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 8.0 - 1.0
    return images, torch.tensor(data.target)


def split() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """(training, hold-out), shuffled with a fixed seed."""
    images, labels = digits()
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    train, test = order[:TRAIN], order[TRAIN:]
    return (images[train], labels[train]), (images[test], labels[test])


def train(epochs: int = 12) -> DigitsNet:
    """Train for a few seconds on one core."""
    torch.manual_seed(0)
    model = DigitsNet()
    (images, labels), _ = split()
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    batches = range(0, TRAIN, 64)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 8e-3, epochs * len(batches))
    for _ in range(epochs):
        order = torch.randperm(TRAIN)
        for start in batches:
            index = order[start : start + 64]
            loss = F.cross_entropy(model(images[index]), labels[index])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return model.eval()


def trained(cache: Path) -> DigitsNet:
    """The trained model; trained once, then read from ``cache``."""
    path = cache / "digits.pt"
    if not path.exists():
        partial = path.with_suffix(".tmp")
        torch.save(train().state_dict(), partial)
        partial.replace(path)
    model = DigitsNet()
    model.load_state_dict(torch.load(path, weights_only=True))
    return model.eval()


def accuracy(model: object) -> float:
    """Share of hold-out digits that ``model`` reads right."""
    _, (images, labels) = split()
    with torch.no_grad():
        logits = model(images)  # type: ignore[operator]
    return float((logits.argmax(1) == labels).float().mean())


def calibration_batches() -> list[Tensor]:
    """Ten batches of training images."""
    (images, _), _ = split()
    return list(images[:320].split(32))


def holdout() -> Tensor:
    """64 hold-out images."""
    return split()[1][0][:64]
