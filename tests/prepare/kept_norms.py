"""Models whose batch norms train on, for the tests of the QAT modes that keep them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qtune.modes import QATMode, qat_mode
from qtune.nn.prepared import PreparedModel
from qtune.quantization import (
    FakeQuantState,
    set_fake_quantize,
)

WITH, REVERSE = QATMode.WithBN, QATMode.WithBNReverseFold
BOTH = [WITH, REVERSE]


@pytest.fixture(params=BOTH, ids=str)
def mode(request: pytest.FixtureRequest) -> Iterator[QATMode]:
    with qat_mode(request.param) as chosen:
        yield chosen


def random_norm(channels: int, rank: int = 2, cls: Any = None) -> nn.Module:
    """A batch norm whose treatment can't go unnoticed: factors of both signs, one of them 0."""
    known: dict[int, Any] = {0: nn.BatchNorm1d, 1: nn.BatchNorm1d, 3: nn.BatchNorm3d}
    bn = (cls or known.get(rank, nn.BatchNorm2d))(channels)
    bn.running_mean.uniform_(-1, 1)
    bn.running_var.uniform_(0.5, 2)
    nn.init.uniform_(bn.weight, 0.5, 1.5)
    nn.init.uniform_(bn.bias, -1, 1)
    with torch.no_grad():
        bn.weight[0] = 0.0
        bn.weight[1] *= -1
    return bn


LAYERS: dict[str, tuple[int, Any]] = {
    "conv1d": (1, lambda: nn.Conv1d(4, 6, 3, padding=1)),
    "conv2d": (2, lambda: nn.Conv2d(4, 6, 3, padding=1, groups=2, bias=False)),
    "conv3d": (3, lambda: nn.Conv3d(4, 6, 3, padding=1)),
    "conv_transpose1d": (1, lambda: nn.ConvTranspose1d(4, 6, 3, padding=1)),
    "conv_transpose2d": (2, lambda: nn.ConvTranspose2d(4, 6, 3, padding=1, bias=False)),
    "grouped": (2, lambda: nn.ConvTranspose2d(4, 6, 3, padding=1, groups=2)),
    "depthwise": (2, lambda: nn.ConvTranspose2d(4, 4, 3, padding=1, groups=4)),
    "conv_transpose3d": (3, lambda: nn.ConvTranspose3d(4, 6, 3, padding=1)),
    "linear": (0, lambda: nn.Linear(4, 6)),
}


class Group(nn.Module):
    """A GEMM, a batch norm, and what may follow."""

    def __init__(self, layer: str, tail: str) -> None:
        super().__init__()
        rank, make = LAYERS[layer]
        self.gemm, self.rank, self.tail = make(), rank, tail
        self.channels = 4 if layer == "depthwise" else 6
        self.bn, self.drop = random_norm(self.channels, rank), nn.Dropout(0.25)

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn(self.gemm(x))
        if "add" in self.tail:
            y = y + (x if self.channels == 4 else torch.cat([x, x[:, :2]], 1))
        return self.drop(F.relu(y) if "relu" in self.tail else y)

    def data(self) -> Tensor:
        return torch.randn(6, 4, *[5] * self.rank)


def stats(model: nn.Module) -> dict[str, Tensor]:
    return {k: v for k, v in model.state_dict().items() if "running" in k or "tracked" in k}


def same_stats(a: nn.Module, b: nn.Module) -> bool:
    return all(torch.equal(v, stats(a)[k]) for k, v in stats(b).items())


def trained(model: PreparedModel, x: Tensor, steps: int = 3, lr: float = 0.05) -> PreparedModel:
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    set_fake_quantize(model.train(), FakeQuantState.QAT)
    for _ in range(steps):
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        optimizer.step()
    set_fake_quantize(model.eval(), FakeQuantState.VALIDATION)
    return model


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(3, 4, 3), random_norm(4), nn.ReLU())
        self.neck = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), random_norm(4))

    def forward(self, x: Tensor) -> Tensor:
        x = self.backbone(x)
        return F.relu(x + self.neck(x))
