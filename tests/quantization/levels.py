"""Three models on every consistency level: prepared, calibrated, converted, and how far apart."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qtune.analysis.own_error import own_errors
from qtune.capture.inputs import as_inputs
from qtune.hbir.feeding import bind_call
from qtune.hbir.module import HbirModule
from qtune.modes import consistency_level
from qtune.nn.prepared import PreparedModel
from qtune.profiler.observe import observe
from qtune.quantization import DeQuantStub, QuantStub, hbdk4

from .flow import calib, prep

LEVELS = (None, 0, 1, 2, 3, 4)


class Digits(nn.Module):
    """The net of ``examples/digits``: residual blocks, a global mean, a linear head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU()
        )
        self.conv = nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(8)
        self.pool = nn.MaxPool2d(2)
        self.body = nn.Sequential(
            nn.Conv2d(8, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()
        )
        self.head = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = F.relu(x + self.bn(self.conv(x)))
        x = self.body(self.pool(x))
        return self.head(x.mean((2, 3)))


class Residual(nn.Module):
    """Every operator whose integers are exact on level 2: no table, no resize."""

    def __init__(self) -> None:
        super().__init__()
        self.quant, self.dequant = QuantStub(), DeQuantStub()
        self.stem = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.point = nn.Conv2d(8, 8, 1)
        self.deconv = nn.ConvTranspose2d(8, 4, 3, stride=2, padding=1)
        self.average = nn.AvgPool2d(3, 2, 1, count_include_pad=False)
        self.head = nn.Linear(24, 10)
        self.tail = nn.Linear(10, 5)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = F.relu(self.stem(self.quant(x)))
        y = F.relu6(self.point(self.depthwise(x)) + x)
        z = torch.cat([F.max_pool2d(x, 2), self.average(y)], 1)
        up = self.deconv(y)[:, :, 1:-1, 1:-1] - 0.25
        features = torch.cat(
            [F.adaptive_avg_pool2d(z, 1).flatten(1), up.mean((2, 3)), up.sum((2, 3)) * 0.01], 1
        )
        hidden = self.head(features)
        return self.dequant(hidden), self.dequant(self.tail(F.relu(hidden)))


class Block(nn.Module):
    """Attention with softmax and GELU tables inside, on a map that a resize made larger."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 8, 4, stride=4)
        self.mix = nn.Conv2d(8, 16, 1)
        self.qkv = nn.Linear(16, 48)
        self.out = nn.Linear(16, 16)
        self.up = nn.Linear(16, 32)
        self.down = nn.Linear(32, 16)
        self.norm = nn.LayerNorm(16)

    def forward(self, x: Tensor) -> Tensor:
        x = F.interpolate(self.patch(x), scale_factor=1.3, mode="bilinear", align_corners=False)
        x = self.mix(x).flatten(2).transpose(1, 2)
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        weights = torch.softmax(q @ k.transpose(1, 2) * 0.25, -1)
        x = x + self.out(weights @ v)
        return x + self.down(F.gelu(self.up(x)))


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "digits": (Digits, (4, 1, 8, 8)),
    "residual": (Residual, (2, 3, 27, 27)),
    "block": (Block, (2, 3, 16, 16)),
}


def data(name: str, count: int, seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(MODELS[name][1], generator=generator) for _ in range(count)]


def float_model(name: str) -> nn.Module:
    """The model with random weights and batch norms."""
    torch.manual_seed(3)
    model = MODELS[name][0]()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.3)
            module.running_var.uniform_(0.5, 2)
            nn.init.uniform_(module.weight, 0.5, 1.5)
    return model.eval()


@cache
def calibrated(name: str, level: int | None) -> PreparedModel:
    """The calibrated model, made once; tests must leave it as it is."""
    with consistency_level(level):
        p = prep(float_model(name), data(name, 1, 0)[0])
    calib(p, data(name, 1, 1))
    return p


@cache
def converted(name: str, level: int | None) -> HbirModule:
    """The integer module, made once."""
    return hbdk4.convert(hbdk4.export(calibrated(name, level), data(name, 1, 0)[0]))


def distances(p: PreparedModel, quantized: HbirModule, inputs: list[Tensor]) -> dict[str, float]:
    """Mean distance in output scales of every operator, both models fed the same."""
    found: dict[str, list[float]] = {}
    for x in inputs:
        arguments = as_inputs(x)
        feed = bind_call(quantized[0], arguments.args, {})
        with torch.no_grad():
            seen = observe(p, arguments)
        for name, error in own_errors(seen, feed, quantized).items():
            if error.scale is None:
                continue
            steps = (error.value.double() - error.reference.double()).abs() / error.scale
            found.setdefault(name, []).append(float(steps.mean()))
    return {name: sum(values) / len(values) for name, values in found.items()}


def mean_distance(name: str, level: int | None) -> float:
    """Mean over all operators of :func:`distances`."""
    each = distances(calibrated(name, level), converted(name, level), data(name, 1, 1))
    return sum(each.values()) / len(each)
