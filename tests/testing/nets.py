"""Small models with one property each, their calibration data, and damaged copies of modules."""

from __future__ import annotations

import copy

import numpy as np
import onnx_ir as ir
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qtune.hbir.module import HbirModule


class Net(nn.Module):
    """conv, relu, pool, conv, relu, mean, linear: one of each kind of scale."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.pool = nn.MaxPool2d(2)
        self.body = nn.Conv2d(4, 4, 3, padding=1)
        self.head = nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(F.relu(self.stem(x)))
        x = F.relu(self.body(x))
        return self.head(x.mean((2, 3)))


class EditedNet(Net):
    """The same modules and weights, another forward."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(F.relu(self.stem(x)))
        x = F.relu(self.body(x) + 0.5)
        return self.head(x.mean((2, 3)))


class Shared(Net):
    """Runs ``body`` twice, so that nothing can be fused with it."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(F.relu(self.stem(x)))
        x = F.relu(self.body(x))
        return self.head(F.relu(self.body(x)).mean((2, 3)))


class Signed(Net):
    """No relu: codes of both signs."""

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.pool(self.stem(x)).mean((2, 3)))


class TwoHeads(Net):
    """A dict of outputs."""

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        x = F.relu(self.stem(x))
        return {"map": self.body(x), "scores": self.head(x.mean((2, 3)))}


def make(cls: type[nn.Module] = Net) -> nn.Module:
    """A model with the same weights every time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return cls().eval()


def batches(count: int = 3, size: int = 4, seed: int = 1) -> list[Tensor]:
    """Calibration data, shape (size, 3, 8, 8)."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(size, 3, 8, 8, generator=generator) for _ in range(count)]


def damaged(module: HbirModule, op: str, change: int = 20_000) -> HbirModule:
    """A copy of an integer module in which the bias of ``op`` is off by ``change``."""
    broken = copy.deepcopy(module)
    for node in broken.model.graph:
        for value in node.inputs:
            if value is not None and value.name == f"{op}.bias" and value.const_value is not None:
                wrong = value.const_value.numpy() + np.int32(change)
                value.const_value = ir.tensor(wrong, name=value.name)
                return HbirModule(broken.model)
    raise LookupError(op)
