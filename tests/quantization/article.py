"""The model of the QAT article in small: backbone, head with several outputs, deploy model."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from qtune.quantization import (
    DeQuantStub,
    FakeQuantState,
    FloatFunctional,
    QuantStub,
    fuse_known_modules,
    fuse_modules,
    get_default_qat_out_qconfig,
    get_default_qat_qconfig,
    prepare_qat,
    set_fake_quantize,
)

IMAGES = torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(7)) * 2 - 1


class Block(nn.Module):
    """Two convolutions with a short cut."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1, self.bn1, self.relu1 = conv(width, width), nn.BatchNorm2d(width), nn.ReLU()
        self.conv2, self.bn2 = conv(width, width), nn.BatchNorm2d(width)
        self.add, self.relu2 = FloatFunctional(), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(self.relu1(self.bn1(self.conv1(x)))))
        return self.relu2(self.add.add(x, y))

    def fuse_modules(self) -> None:
        groups = [["conv1", "bn1", "relu1"], ["conv2", "bn2", "add", "relu2"]]
        fuse_modules(self, groups, inplace=True, fuser_func=fuse_known_modules)


def conv(inputs: int, outputs: int) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, padding=1)


class Backbone(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.quant = QuantStub(scale=1 / 128)
        self.stem, self.block, self.pool = conv(3, 8), Block(8), nn.MaxPool2d(2)
        self.act, self.square = nn.SiLU(), FloatFunctional()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.block(self.stem(self.quant(x)))
        y = self.act(self.pool(x))
        return x, self.square.mul(y, y)


class Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convs_pred = nn.ModuleList(nn.Conv2d(8, 5, 1) for _ in range(2))
        self.dequant = nn.ModuleList(DeQuantStub() for _ in range(3))
        self.norm, self.softmax = nn.LayerNorm(8), nn.Softmax(-1)
        self.loss = nn.MSELoss()

    def forward(self, feats: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
        maps = [self.dequant[i](self.convs_pred[i](x)) for i, x in enumerate(feats)]
        rows = torch.flatten(feats[1].permute(0, 2, 3, 1), 1, 2)
        return (*maps, self.dequant[2](self.softmax(self.norm(rows))))


class Detector(nn.Module):
    """The whole model, with a loss that is not quantized."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone, self.head = Backbone(), Head()

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return self.head(self.backbone(x))


class DeployModel(nn.Module):
    """What the article traces: parts of the converted model."""

    def __init__(self, backbone: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.backbone, self.head = backbone, head

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return self.head(self.backbone(x))


def qat_detector(*, fused: bool = True) -> Any:
    """Fused, configured, prepared in eager mode and calibrated."""
    model = Detector().eval()
    if fused:
        model.backbone.block.fuse_modules()
    model.qconfig = get_default_qat_qconfig()
    for layer in model.head.convs_pred:
        layer.qconfig = get_default_qat_out_qconfig()
    model.head.loss.qconfig = None
    prepared = prepare_qat(model).eval()
    set_fake_quantize(prepared, FakeQuantState.CALIBRATION)
    with torch.no_grad():
        prepared(IMAGES)
        prepared(-IMAGES)
    set_fake_quantize(prepared, FakeQuantState.VALIDATION)
    return prepared
