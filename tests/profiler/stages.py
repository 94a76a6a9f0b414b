"""One net in the stages that the older tools compare."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.ao.quantization import DeQuantStub, QuantStub

from qtune.nn.prepared import PreparedModel
from qtune.quantization import (
    FakeQuantState,
    FloatFunctional,
    fuse_modules,
    prepare,
    prepare_qat,
    set_fake_quantize,
)
from qtune.quantization.qconfig import default_qat_8bit_fake_quant_qconfig

X = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(1))


class Net(nn.Module):
    """A fused conv + bn + relu, a shared conv, a split, a softmax, a linear head."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn, self.relu = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()
        self.shared = nn.Conv2d(8, 8, 1)
        self.head = nn.Linear(8, 4)
        with torch.no_grad():
            self.bn.running_mean.uniform_(-0.2, 0.2)
            self.bn.running_var.uniform_(0.5, 1.5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.bn(self.conv(x)))
        x = self.shared(self.shared(x))
        a, b = x.split(4, 1)
        x = torch.cat([a, b], 1).softmax(1)
        return self.head(x.mean((2, 3)))


class Eager(nn.Module):
    """A fused group and a FloatFunctional between stubs."""

    def __init__(self) -> None:
        super().__init__()
        self.quant, self.dequant = QuantStub(), DeQuantStub()
        self.conv, self.bn, self.relu = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()
        self.side, self.add = nn.Conv2d(4, 4, 1), FloatFunctional()

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.bn(self.conv(self.quant(x))))
        return self.dequant(self.add.add(x, self.side(x)))


def calibrated(model: PreparedModel, x: Tensor = X) -> PreparedModel:
    set_fake_quantize(model.eval(), FakeQuantState.CALIBRATION)
    model(x)
    set_fake_quantize(model, FakeQuantState.VALIDATION)
    return model


def prepared_net(x: Tensor = X) -> tuple[nn.Module, PreparedModel]:
    """The float net and its calibrated model."""
    net = Net().eval()
    return net, calibrated(prepare(net, x), x)


def eager_net() -> PreparedModel:
    """The calibrated model of eager mode."""
    net = fuse_modules(Eager().eval(), ["conv", "bn", "relu"])
    net.qconfig = default_qat_8bit_fake_quant_qconfig
    return calibrated(prepare_qat(net))
