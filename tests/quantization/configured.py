"""Networks for the tests of setters, and what a prepared model got."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qtune.nn.prepared import PreparedModel
from qtune.prepare.rundir import dtypes_of
from qtune.quantization import DeQuantStub, QuantStub

IMAGE = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(5)) / 4


class Toy(nn.Module):
    """The network of the plugin guide's misconceptions, with stubs, and one layer more."""

    def __init__(self, scale: float | None = 1 / 128) -> None:
        super().__init__()
        self.quant, self.dequant = QuantStub(scale=scale), DeQuantStub()
        self.conv0, self.bn, self.relu0 = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()
        self.mid = nn.Conv2d(4, 4, 1)
        self.classifier = nn.Conv2d(4, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.mid(self.relu0(self.bn(self.conv0(self.quant(x)))))
        return self.dequant(self.classifier(x))


class Warped(nn.Module):
    """A grid that a linear layer and two sums make."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.to_grid, self.last = (
            nn.Conv2d(3, 4, 1),
            nn.Linear(4, 2),
            nn.Conv2d(4, 2, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.first(x))
        grid = torch.tanh(self.to_grid(y.permute(0, 2, 3, 1)) * 0.5)
        return self.last(F.grid_sample(y, grid, align_corners=False))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.norm, self.out = nn.LayerNorm(8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x.flatten(1, 2))
        weights = torch.softmax(self.q(x) @ self.k(x).transpose(1, 2) / 4, -1)
        return self.out(torch.cat([weights @ self.v(x), x], 1)) + 1


class Floating(nn.Module):
    """Float islands: a module without qconfig, results that are no numbers, two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.odd, self.head = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1), nn.Conv2d(4, 2, 1)
        self.odd.qconfig = None  # type: ignore[assignment]
        self.pool, self.norm = nn.MaxPool2d(2), nn.GroupNorm(2, 4)  # its weight is reshaped

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = self.norm(self.pool(F.relu(self.conv(x))))
        z = self.head(torch.sigmoid(self.odd(y)))
        return z, z.argmax(1), torch.relu(self.conv(x))


def dtype_of(model: PreparedModel, name: str, port: str = "output") -> str:
    """dtype of one port, ``""`` where it has none of its own."""
    return dtypes_of(model)[name].get(port, "")


def observer_of(model: PreparedModel, name: str, port: str = "output") -> Any:
    module = model.get_submodule(name)
    kinds = {"output": "activation_post_process", "weight": "weight_fake_quant"}
    return getattr(module, kinds[port]).activation_post_process
