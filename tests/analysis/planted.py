"""A ResNet-20 with one activation that int8 can't hold, although the float function is the same.

22 weight layers, inputs of 3x32x32. One channel behind ``<block>.relu1`` is 60 times larger, and
the next convolution scales it back: that fake-quantize loses six bits on every other channel.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
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
        return self.relu2(y + self.down(x))


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
        self.fc = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.fc(self.pool(x).flatten(1))


@dataclass(frozen=True, slots=True)
class Planted:
    """The float net, its calibrated model, 32 evaluation samples in batches, and the culprit."""

    net: ResNet20
    model: PreparedModel
    batches: list[Tensor]
    culprit: str


def planted(
    position: str = POSITIONS[1],
    templates: list[Template] | None = None,
    observer: type | None = None,
) -> Planted:
    """The net with the activation planted behind ``<position>.relu1``, calibrated on 64 samples.

    ``templates`` are added to the setter's; ``observer``: a class, default min_max. Needs a march.
    """
    torch.manual_seed(0)
    net = _with_statistics(ResNet20())
    block = net.get_submodule(position)
    with torch.no_grad():
        block.bn1.weight[CHANNEL] *= FACTOR
        block.bn1.bias[CHANNEL] *= FACTOR
        block.conv2.weight[:, CHANNEL] /= FACTOR
    everywhere = [ModuleNameTemplate({"": "qint8"}), ConvDtypeTemplate(), MatmulDtypeTemplate()]
    reference = get_qconfig() if observer is None else get_qconfig(observer=observer)
    setter = QconfigSetter(reference, [*everywhere, *(templates or [])])
    model = prepare(net, torch.randn(BATCH, 3, 32, 32), setter)
    set_fake_quantize(model.eval(), FakeQuantState.CALIBRATION)
    with torch.no_grad():
        for _ in range(4):
            model(torch.randn(BATCH, 3, 32, 32))
    set_fake_quantize(model, FakeQuantState.VALIDATION)
    batches = [torch.randn(BATCH, 3, 32, 32) for _ in range(2)]
    return Planted(net, model, batches, f"{position}.relu1")


def _with_statistics(net: ResNet20) -> ResNet20:
    """Batch norms that know the scale of their input, as in a trained net; eval mode."""
    net.train()
    with torch.no_grad():
        for _ in range(10):
            net(torch.randn(BATCH, 3, 32, 32))
    return net.eval()
