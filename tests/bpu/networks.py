"""Kinds of networks whose memory plans differ: chains, residuals, long skips, pyramids."""

from __future__ import annotations

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qtune import march, qint16
from qtune.bpu.compiler import convert
from qtune.hbir.module import HbirModule
from qtune.hbir.serialize import from_bytes
from qtune.quantization import (
    FakeQuantState,
    QconfigSetter,
    get_qconfig,
    prepare,
    set_fake_quantize,
)
from qtune.quantization.hbdk4 import export
from qtune.quantization.qconfig_setter import ModuleNameTemplate


def conv(i: int, o: int, k: int = 3, s: int = 1, g: int = 1) -> nn.Module:
    return nn.Sequential(nn.Conv2d(i, o, k, s, k // 2, groups=g), nn.ReLU())


class Block(nn.Module):
    def __init__(self, i: int, o: int, s: int) -> None:
        super().__init__()
        self.a, self.b = conv(i, o, 3, s), nn.Conv2d(o, o, 3, 1, 1)
        self.down = nn.Conv2d(i, o, 1, s) if s > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.b(self.a(x)) + self.down(x))


class ResNet(nn.Module):
    """ResNet-18 at an eighth of its width."""

    def __init__(self) -> None:
        super().__init__()
        plan = [(8, 8, 1), (8, 8, 1), (8, 16, 2), (16, 16, 1), (16, 32, 2), (32, 32, 1)]
        self.stem, self.blocks = conv(3, 8, 7, 2), nn.Sequential(*[Block(*p) for p in plan])
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(F.max_pool2d(self.stem(x), 3, 2, 1))
        return self.head(x.mean(dim=(2, 3)))


class Inverted(nn.Module):
    def __init__(self, i: int, o: int, s: int, t: int = 6) -> None:
        super().__init__()
        self.body = nn.Sequential(
            conv(i, i * t, 1), conv(i * t, i * t, 3, s, i * t), nn.Conv2d(i * t, o, 1)
        )
        self.skip = s == 1 and i == o

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x) if self.skip else self.body(x)


class MobileNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        plan = [(8, 8, 1), (8, 12, 2), (12, 12, 1), (12, 16, 2), (16, 16, 1), (16, 16, 1)]
        self.body = nn.Sequential(conv(3, 8, 3, 2), *[Inverted(*p) for p in plan])

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


class UNet(nn.Module):
    """Four levels: the first skip lives through the whole network."""

    def __init__(self) -> None:
        super().__init__()
        sizes = [4, 8, 16, 32]
        self.down = nn.ModuleList(conv(i, o) for i, o in zip([3, *sizes], sizes, strict=False))
        pairs = list(zip(sizes[:0:-1], sizes[-2::-1], strict=True))
        self.up = nn.ModuleList(conv(i + o, o) for i, o in pairs)

    def forward(self, x: Tensor) -> Tensor:
        skips = []
        for layer in self.down:
            x = layer(x)
            skips.append(x)
            x = F.max_pool2d(x, 2) if layer is not self.down[-1] else x
        for layer, skip in zip(self.up, skips[-2::-1], strict=True):
            x = layer(torch.cat([F.interpolate(x, scale_factor=2.0), skip], dim=1))
        return x


class Neck(nn.Module):
    """A detector's backbone, path-aggregation neck and three heads."""

    def __init__(self) -> None:
        super().__init__()
        self.c3, self.c4, self.c5 = conv(3, 8, 3, 4), conv(8, 16, 3, 2), conv(16, 32, 3, 2)
        self.t4, self.t3 = conv(48, 16), conv(24, 8)
        self.d3, self.d4 = conv(8, 8, 3, 2), conv(16, 16, 3, 2)
        self.b4, self.b5 = conv(24, 16), conv(48, 32)
        self.heads = nn.ModuleList(nn.Conv2d(c, 6, 1) for c in (8, 16, 32))

    def forward(self, x: Tensor) -> dict[str, list[Tensor]]:
        c3 = self.c3(x)
        c4 = self.c4(c3)
        c5 = self.c5(c4)
        p4 = self.t4(torch.cat([F.interpolate(c5, scale_factor=2.0), c4], 1))
        p3 = self.t3(torch.cat([F.interpolate(p4, scale_factor=2.0), c3], 1))
        n4 = self.b4(torch.cat([self.d3(p3), p4], 1))
        n5 = self.b5(torch.cat([self.d4(n4), c5], 1))
        maps = [head(x) for head, x in zip(self.heads, (p3, n4, n5), strict=True)]
        return {"maps": maps}


NETWORKS = {"resnet": ResNet, "mobilenet": MobileNet, "unet": UNet, "neck": Neck}


def example() -> Tensor:
    return torch.rand(1, 3, 64, 64, generator=torch.Generator().manual_seed(5)) * 2 - 1


@cache
def _converted(name: str, int16: bool) -> bytes:
    torch.manual_seed(0)
    x = example()
    setter = QconfigSetter(get_qconfig(), [ModuleNameTemplate({"": qint16})]) if int16 else None
    with march.march("nash-e"):
        p = prepare(NETWORKS[name]().eval(), x, qconfig_setter=setter)
        p.eval()
        set_fake_quantize(p, FakeQuantState.CALIBRATION)
        p(x)
        set_fake_quantize(p, FakeQuantState.VALIDATION)
        return convert(export(p, x), "nash-e").to_bytes()


def converted(name: str, int16: bool = False) -> HbirModule:
    """The integer module of a network, made once; activations qint8 or qint16."""
    return from_bytes(_converted(name, int16))
