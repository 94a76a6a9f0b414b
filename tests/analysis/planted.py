"""A ResNet-20 with one activation that int8 can't hold, although the float function is the same.

22 weight layers; images of 3x32x32 in ten classes, a pattern for each under noise. One channel
behind ``<block>.relu1`` is 60 times larger, and the next convolution scales it back: that
fake-quantize loses six bits on every other channel.

The net is trained for a few steps. In a random one all logits lie within a step of int8 of each
other, so that a metric of relative error looks at nothing but rounding.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qtune.nn.prepared import PreparedModel
from qtune.qconfig.rules import Template
from qtune.quantization import FakeQuantState, get_qconfig, prepare, set_fake_quantize
from qtune.quantization.qconfig_setter import (
    ConvDtypeTemplate,
    MatmulDtypeTemplate,
    ModuleNameTemplate,
    QconfigSetter,
)

FACTOR = 60.0
CHANNEL = 3
BATCH = 16
CLASSES = 10
STEPS = 30
NOISE = 0.7
POSITIONS = ("layer1.1", "layer2.1", "layer3.0")
"""Blocks in which the activation may be planted; the second one is the usual one."""


class Block(nn.Module):
    """A basic block of a ResNet for small images."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.relu2 = nn.ReLU()
        same = stride == 1 and inputs == outputs
        down = [nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)]
        self.down = nn.Identity() if same else nn.Sequential(*down)

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(self.relu1(self.bn1(self.conv1(x)))))
        result: Tensor = self.relu2(y + self.down(x))
        return result


class ResNet20(nn.Module):
    """conv, three layers of three blocks, average, linear."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.relu = nn.ReLU()
        self.layer1 = nn.Sequential(*(Block(16, 16, 1) for _ in range(3)))
        self.layer2 = nn.Sequential(Block(16, 32, 2), Block(32, 32, 1), Block(32, 32, 1))
        self.layer3 = nn.Sequential(Block(32, 64, 2), Block(64, 64, 1), Block(64, 64, 1))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(64, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        result: Tensor = self.fc(self.pool(x).flatten(1))
        return result


@dataclass(frozen=True, slots=True)
class Planted:
    """The float net, its calibrated model, 32 evaluation samples in batches, and the culprit.

    ``labels``: the class of each sample, int64 [16] per batch.
    """

    net: ResNet20
    model: PreparedModel
    batches: list[Tensor]
    labels: list[Tensor]
    culprit: str


def planted(
    position: str = POSITIONS[1],
    templates: list[Template] | None = None,
    observer: type | None = None,
) -> Planted:
    """The net with the activation planted behind ``<position>.relu1``, calibrated on 64 samples.

    ``templates`` are added to the setter's; ``observer``: a class, default min_max. Needs a march.
    The same in every process: it has random numbers of its own and leaves torch's alone.
    """
    net = copy.deepcopy(_trained())
    block = net.get_submodule(position)
    assert isinstance(block, Block)
    with torch.no_grad():
        block.bn1.weight[CHANNEL] *= FACTOR
        block.bn1.bias[CHANNEL] *= FACTOR
        block.conv2.weight[:, CHANNEL] /= FACTOR
    everywhere: list[Template] = [
        ModuleNameTemplate({"": "qint8"}),
        ConvDtypeTemplate(),
        MatmulDtypeTemplate(),
    ]
    reference = get_qconfig() if observer is None else get_qconfig(observer=observer)
    setter = QconfigSetter(reference, [*everywhere, *(templates or [])])
    draw = torch.Generator().manual_seed(1)
    model = prepare(net, samples(draw)[0], setter)
    set_fake_quantize(model.eval(), FakeQuantState.CALIBRATION)
    with torch.no_grad():
        for _ in range(4):
            model(samples(draw)[0])
    set_fake_quantize(model, FakeQuantState.VALIDATION)
    pairs = [samples(draw) for _ in range(2)]
    return Planted(net, model, [x for x, _ in pairs], [y for _, y in pairs], f"{position}.relu1")


def samples(draw: torch.Generator, count: int = BATCH) -> tuple[Tensor, Tensor]:
    """Images float [count, 3, 32, 32] of about unit size, and their classes, int64 [count]."""
    labels = torch.randint(CLASSES, (count,), generator=draw)
    noise = torch.randn(count, 3, 32, 32, generator=draw)
    return _patterns()[labels] + NOISE * noise, labels


@cache
def _patterns() -> Tensor:
    """A smooth pattern for each class."""
    coarse = torch.randn(CLASSES, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    return F.interpolate(coarse, size=32, mode="bilinear", align_corners=False)


@cache
def _trained() -> ResNet20:
    """The net after a few steps, in eval mode; a second of CPU or two."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = ResNet20().train()
    draw = torch.Generator().manual_seed(0)
    optimizer = torch.optim.Adam(net.parameters(), 0.01)
    for _ in range(STEPS):
        x, labels = samples(draw)
        optimizer.zero_grad()
        F.cross_entropy(net(x), labels).backward()
        optimizer.step()
    with torch.no_grad():
        for _ in range(10):  # running statistics of the last weights
            net(samples(draw)[0])
    net.requires_grad_(True)
    for parameter in net.parameters():
        parameter.grad = None
    return net.eval()
