"""Nets and helpers of the profiler's tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.ao.nn.quantized import FloatFunctional

from qtune.profiler import ModelProfiler, OpRunningInfoManager


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 2


def _look(*args: Any) -> None:
    """A hook that changes nothing."""


class Everything(nn.Module):
    """What a float model may do: state, random numbers, changes in place, odd containers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.bn, self.drop, self.act = nn.BatchNorm2d(4), nn.Dropout(0.5), nn.ReLU(inplace=True)
        self.add, self.lstm = FloatFunctional(), nn.LSTM(4, 4, batch_first=True)
        self.mha, self.gelu = nn.MultiheadAttention(4, 2, batch_first=True), nn.GELU()
        self.calls = 0
        self.gelu.register_full_backward_hook(_look)

    def forward(self, batch: dict[str, Tensor], *, mask: Tensor | None = None) -> dict[str, Any]:
        self.calls += 1
        x = self.conv(batch["image"])
        y = self.drop(self.act(self.bn(x)))
        y = self.add.add(self.add.add(y, x), x)
        y[:, 0] = 0.5
        tokens = y.flatten(2).transpose(1, 2)
        h, _ = self.lstm(tokens)
        a, _ = self.mha(h, h, h)
        a = Double.apply(a) + torch.randn_like(a) * 0.01
        a = a + (torch.rand(4) + torch.arange(4))
        if mask is not None and len(mask) == a.size(-1):
            a = a * mask
        a = self.gelu(a)
        return {"out": a.sum(dim=1), "aux": (h, [F.relu(a[:, 0])])}


class Parts(nn.Module):
    """Layers, functions, a layer called twice, a function with a layer's weight."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
        self.fc, self.scale = nn.Linear(4, 4), nn.Parameter(torch.rand(4))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y = self.block(x).mean((2, 3))
        y = self.fc(self.fc(y))
        y = y + torch.arange(y.shape[0]).unsqueeze(1)
        z = F.linear(torch.cat([y, y], 1), torch.ones(2, 8))
        z = z * 1
        z += 1
        return z, *y.split(2, 1), (self.scale * 2).abs()


def profiled(model: nn.Module, folder: Path, *args: Any, **kwargs: Any) -> OpRunningInfoManager:
    """What a profiler keeps of ``model(*args, **kwargs)``."""
    with ModelProfiler(model, folder) as profiler:
        model(*args, **kwargs)
    return profiler.get_info_manager
