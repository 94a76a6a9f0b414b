"""Small networks of the kinds that users quantize, with seeded weights and statistics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qtune import qint16
from qtune.quantization import QconfigSetter, get_qconfig
from qtune.quantization.qconfig_setter import ModuleNameTemplate

INT16 = QconfigSetter(get_qconfig(), [ModuleNameTemplate({"": qint16})])
"""Everything int16 (weights stay int8)."""


class Digits(nn.Module):
    """A plain classifier, half of it functional."""

    def __init__(self) -> None:
        super().__init__()
        self.c1, self.b1 = nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.c2, self.pool = nn.Conv2d(8, 16, 3, padding=1), nn.MaxPool2d(2)
        self.fc = nn.Linear(16 * 4 * 4, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.b1(self.c1(x)))
        x = self.pool(F.relu(self.c2(x)))
        return self.fc(x.reshape(x.size(0), -1))


class Functional(nn.Module):
    """Nothing but functions."""

    def __init__(self) -> None:
        super().__init__()
        self.w1 = nn.Parameter(torch.randn(8, 3, 3, 3) * 0.3)
        self.b1 = nn.Parameter(torch.randn(8) * 0.1)
        self.w2 = nn.Parameter(torch.randn(5, 8) * 0.3)
        self.scale = nn.Parameter(torch.rand(1, 8, 1, 1) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        y = F.hardswish(F.conv2d(x, self.w1, self.b1, stride=2, padding=1)) * self.scale
        y = F.avg_pool2d(y, 2)
        return F.linear(y.mean(dim=(-1, -2)), self.w2)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(inplace=True)
        )
        self.c1, self.b1 = nn.Conv2d(8, 8, 3, 1, 1, bias=False), nn.BatchNorm2d(8)
        self.c2, self.b2 = nn.Conv2d(8, 8, 3, 1, 1, bias=False), nn.BatchNorm2d(8)
        self.down = nn.Sequential(nn.Conv2d(8, 12, 1, 2, bias=False), nn.BatchNorm2d(12))
        self.c3, self.b3 = nn.Conv2d(8, 12, 3, 2, 1, bias=False), nn.BatchNorm2d(12)
        self.relu, self.avg, self.fc = (
            nn.ReLU(inplace=True),
            nn.AdaptiveAvgPool2d(1),
            nn.Linear(12, 5),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = F.relu(self.b1(self.c1(x)), inplace=True)
        x = F.relu(x + self.b2(self.c2(y)))
        y = self.b3(self.c3(x))
        y += self.down(x)
        return self.fc(torch.flatten(self.avg(self.relu(y)), 1))


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.e1, self.e2 = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 16, 3, 2, 1)
        self.up = nn.ConvTranspose2d(16, 8, 4, 2, 1)
        self.d, self.head = nn.Conv2d(24, 8, 3, padding=1), nn.Conv2d(8, 2, 1)

    def forward(self, x: Tensor) -> dict[str, Any]:
        a = F.silu(self.e1(x))
        b = F.leaky_relu(self.e2(a), 0.1)
        v = F.interpolate(b, scale_factor=2, mode="bilinear", align_corners=False)
        y = F.relu6(self.d(torch.cat([self.up(b), v], 1)))
        return {"mask": torch.sigmoid(self.head(y)), "aux": [y, None]}


class Proposals(nn.Module):
    """Like the first of the MTCNN nets."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.prelu1 = nn.Conv2d(3, 10, 3), nn.PReLU(10)
        self.pool1 = nn.MaxPool2d(2, 2, ceil_mode=True)
        self.conv2, self.prelu2 = nn.Conv2d(10, 16, 3), nn.PReLU(16)
        self.conv4_1, self.softmax4_1 = nn.Conv2d(16, 2, 1), nn.Softmax(dim=1)
        self.conv4_2 = nn.Conv2d(16, 4, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.pool1(self.prelu1(self.conv1(x)))
        x = self.prelu2(self.conv2(x))
        return self.conv4_2(x), self.softmax4_1(self.conv4_1(x))


def conv_bn_relu6(i: int, o: int, k: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(i, o, k, stride, (k - 1) // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(o), nn.ReLU6(inplace=True))


class Mobile(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = conv_bn_relu6(3, 8, 3, 2)
        self.expand, self.depth = conv_bn_relu6(8, 24, 1), conv_bn_relu6(24, 24, 3, groups=24)
        self.project = nn.Sequential(nn.Conv2d(24, 8, 1, bias=False), nn.BatchNorm2d(8))
        self.drop, self.fc = nn.Dropout(0.2), nn.Linear(8, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        x = x + self.project(self.depth(self.expand(x)))
        return self.fc(self.drop(x.mean([2, 3])))


class Layer(nn.Conv2d):
    """A layer with a forward of its own."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(F.conv2d(x, self.weight, self.bias, self.stride, self.padding))


class Subclasses(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = Layer(3, 6, 3, padding=1), Layer(6, 4, 3, 2)
        self.head = nn.Conv2d(4, 1, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.b(self.a(x)))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.proj, self.heads = nn.Linear(16, 48), nn.Linear(16, 16), 4

    def forward(self, x: Tensor) -> Tensor:
        b, n, c = x.shape
        qkv = self.qkv(x).reshape(b, n, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        a = ((q @ k.transpose(-2, -1)) * 0.5).softmax(-1)
        return F.gelu(x + self.proj((a @ v).transpose(1, 2).reshape(b, n, c)))


@dataclass(frozen=True)
class Network:
    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    other: tuple[int, ...]
    """Another shape that the same model takes."""

    def model(self) -> nn.Module:
        torch.manual_seed(0)
        model = self.make().eval()
        for bn in model.modules():
            if isinstance(bn, nn.BatchNorm2d):
                bn.running_mean.uniform_(-0.5, 0.5)
                bn.running_var.uniform_(0.5, 2)
                nn.init.uniform_(bn.weight, 0.5, 1.5)
                nn.init.uniform_(bn.bias, -0.5, 0.5)
        return model

    def data(self, count: int = 2) -> list[Tensor]:
        generator = torch.Generator().manual_seed(1)
        return [torch.randn(self.shape, generator=generator) for _ in range(count)]


NETWORKS = {
    "digits": Network(Digits, (4, 1, 8, 8), (1, 1, 8, 8)),
    "functional": Network(Functional, (2, 3, 16, 16), (3, 3, 24, 16)),
    "residual": Network(Residual, (2, 3, 32, 32), (1, 3, 48, 32)),
    "unet": Network(UNet, (1, 3, 16, 16), (2, 3, 32, 16)),
    "proposals": Network(Proposals, (1, 3, 20, 20), (3, 3, 24, 31)),
    "mobile": Network(Mobile, (2, 3, 32, 32), (1, 3, 16, 24)),
    "subclasses": Network(Subclasses, (2, 3, 9, 9), (1, 3, 12, 9)),
    "attention": Network(Attention, (2, 6, 16), (5, 6, 16)),
}
