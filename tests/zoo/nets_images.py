"""Networks on images, in the styles of the zoos, small enough for every run of the tests."""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class NormAct(nn.BatchNorm2d):
    """Batch norm, dropout and activation in one layer that is a batch norm."""

    def __init__(self, channels: int, act: type[nn.Module] | None = nn.ReLU) -> None:
        super().__init__(channels)
        self.drop = nn.Identity()
        self.act = nn.Identity() if act is None else act()

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim != 4:
            raise ValueError(f"expected 4 dimensions, got {x.ndim}")
        if self.training and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        use_batch = self.training or self.running_mean is None
        x = F.batch_norm(
            x, self.running_mean, self.running_var, self.weight, self.bias, use_batch, 0.1, self.eps
        )
        return self.act(self.drop(x))


def conv_norm(i: int, o: int, k: int, stride: int = 1, groups: int = 1, act: Any = nn.ReLU) -> Any:
    conv = nn.Conv2d(i, o, k, stride, k // 2, groups=groups, bias=False)
    return nn.Sequential(OrderedDict(conv=conv, norm=NormAct(o, act)))


class Bottleneck(nn.Module):
    def __init__(self, i: int, o: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            conv_norm(i, o // 2, 1),
            conv_norm(o // 2, o // 2, 3, stride),
            conv_norm(o // 2, o, 1, act=None),
        )
        self.short = (
            conv_norm(i, o, 1, stride, act=None) if (i, stride) != (o, 1) else nn.Sequential()
        )
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.body(x)
        y += self.short(x)
        return self.act(y)


class ResidualNet(nn.Module):
    """Bottlenecks with in-place sums, a pooled head, and the maps of all stages on request."""

    def __init__(self, features_only: bool = False) -> None:
        super().__init__()
        self.stem = conv_norm(3, 8, 3, 2)
        self.stages = nn.ModuleList(
            [Bottleneck(8, 16, 1), Bottleneck(16, 24, 2), Bottleneck(24, 24, 1)]
        )
        self.pool, self.head = nn.AdaptiveAvgPool2d(1), nn.Linear(24, 7)
        self.features_only = features_only

    def forward(self, x: Tensor) -> Tensor | list[Tensor]:
        maps = []
        x = self.stem(x)
        for stage in self.stages:
            x = stage(x)
            maps.append(x)
        return maps if self.features_only else self.head(self.pool(x).flatten(1))


class SqueezeExcite(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(channels, 4, 1), nn.Conv2d(4, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        s = x.mean((2, 3), keepdim=True)
        return x * F.hardsigmoid(self.up(F.relu_(self.down(s))))


class InvertedResidual(nn.Module):
    def __init__(self, channels: int, expand: int) -> None:
        super().__init__()
        wide = channels * expand
        self.layers = nn.Sequential(
            conv_norm(channels, wide, 1, act=nn.Hardswish),
            conv_norm(wide, wide, 5, groups=wide, act=nn.Hardswish),
            SqueezeExcite(wide),
            conv_norm(wide, channels, 1, act=None),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x)


class SamePadConv(nn.Conv2d):
    """Pads so that the output is the input's size over the stride, rounded up."""

    def forward(self, x: Tensor) -> Tensor:
        pads: list[int] = []
        for size, k, s in zip(x.shape[-2:], self.kernel_size, self.stride, strict=True):
            rest = max((-(size // -s) - 1) * s + k - size, 0)
            pads = [rest // 2, rest - rest // 2, *pads]
        return F.conv2d(F.pad(x, pads), self.weight, self.bias, self.stride)


class MobileNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = SamePadConv(3, 8, 3, 2)
        self.blocks = nn.Sequential(InvertedResidual(8, 3), InvertedResidual(8, 2))
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(x)).mean([2, 3]))


class Attention(nn.Module):
    """Self-attention with one projection for queries, keys and values; ``bias`` is added."""

    def __init__(self, dim: int, heads: int, fused: bool = True) -> None:
        super().__init__()
        self.qkv, self.proj, self.heads, self.fused = (
            nn.Linear(dim, 3 * dim),
            nn.Linear(dim, dim),
            heads,
            fused,
        )
        self.scale = (dim // heads) ** -0.5

    def forward(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        b, n, c = x.shape
        q, k, v = (
            self.qkv(x)
            .reshape(b, n, 3, self.heads, c // self.heads)
            .permute(2, 0, 3, 1, 4)
            .unbind(0)
        )
        if self.fused:
            x = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        else:
            scores = (q * self.scale) @ k.transpose(-2, -1)
            scores = scores if bias is None else scores + bias
            x = scores.softmax(dim=-1) @ v
        return self.proj(x.transpose(1, 2).reshape(b, n, c))


class Encoder(nn.Module):
    def __init__(self, dim: int, heads: int, fused: bool = True) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim, eps=1e-6), nn.LayerNorm(dim, eps=1e-6)
        self.attn = Attention(dim, heads, fused)
        self.mlp = nn.Sequential(
            nn.Linear(dim, 2 * dim), nn.GELU(), nn.Dropout(0.1), nn.Linear(2 * dim, dim)
        )
        self.gamma = nn.Parameter(torch.full((dim,), 0.5))

    def forward(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        x = x + self.attn(self.norm1(x), bias)
        return x + self.gamma * self.mlp(self.norm2(x))


class VisionTransformer(nn.Module):
    """Patches, a class token, positions that are resized for other image sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 16, 8, 8)
        self.token = nn.Parameter(torch.randn(1, 1, 16))
        self.places = nn.Parameter(torch.randn(1, 16, 4, 4) * 0.1)
        self.blocks = nn.ModuleList([Encoder(16, 2), Encoder(16, 4, fused=False)])
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x)
        places = self.places.repeat_interleave(2, 2)[:, :, : x.shape[2], : x.shape[3]]
        x = (x + places).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], dim=1)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


def windows(x: Tensor, size: int) -> Tensor:
    b, h, w, c = x.shape
    x = x.view(b, h // size, size, w // size, size, c)
    return x.permute(0, 1, 3, 2, 4, 5).contiguous().view(-1, size * size, c)


class ShiftedWindows(nn.Module):
    """Attention in windows, shifted in every second block, with relative positions and masks."""

    def __init__(self, size: int = 4) -> None:
        super().__init__()
        self.size, self.embed, self.head = size, nn.Conv2d(3, 16, 4, 4), nn.Linear(32, 5)
        self.blocks = nn.ModuleList([Encoder(16, 2, fused=False), Encoder(16, 2)])
        self.table = nn.Parameter(torch.randn((2 * size - 1) ** 2, 2) * 0.1)
        rows, columns = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
        places = torch.stack([rows.flatten(), columns.flatten()])
        near = (places[:, :, None] - places[:, None, :] + size - 1).permute(1, 2, 0)
        self.register_buffer("near", near[..., 0] * (2 * size - 1) + near[..., 1], persistent=False)
        self.norm, self.merge = nn.LayerNorm(64), nn.Linear(64, 32, bias=False)

    def mask(self, h: int, w: int, x: Tensor) -> Tensor:
        parts, shift = x.new_zeros(1, h, w, 1), self.size // 2
        count = 0
        for rows in (slice(0, -self.size), slice(-self.size, -shift), slice(-shift, None)):
            for columns in (slice(0, -self.size), slice(-self.size, -shift), slice(-shift, None)):
                parts[:, rows, columns] = count
                count += 1
        cut = windows(parts, self.size).squeeze(-1)
        apart = cut.unsqueeze(1) - cut.unsqueeze(2)
        return apart.masked_fill(apart != 0, -100.0).unsqueeze(1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x).permute(0, 2, 3, 1)
        b, h, w, c = x.shape
        bias = self.table[self.near.flatten()].view(self.size**2, self.size**2, -1)
        bias = bias.permute(2, 0, 1).unsqueeze(0)
        for index, block in enumerate(self.blocks):
            shift = self.size // 2 * (index % 2)
            y = torch.roll(x, (-shift, -shift), (1, 2)) if shift else x
            mask = bias + self.mask(h, w, x).repeat(b, 1, 1, 1) if shift else bias
            y = block(windows(y, self.size), mask)
            y = y.view(b, h // self.size, w // self.size, self.size, self.size, c)
            y = y.permute(0, 1, 3, 2, 4, 5).reshape(b, h, w, c)
            x = torch.roll(y, (shift, shift), (1, 2)) if shift else y
        x = torch.cat([x[:, i::2, j::2] for j in (0, 1) for i in (0, 1)], -1)
        return self.head(self.merge(self.norm(x)).mean((1, 2)))


class Maps(NamedTuple):
    mask: Tensor
    aux: dict[str, Tensor]


class UNet(nn.Module):
    """Skips, transposed convolutions, resizing to the size of another map."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = (
            conv_norm(3, 8, 3),
            conv_norm(8, 12, 3, 2),
            conv_norm(12, 16, 3, 2),
        )
        self.up = nn.ConvTranspose2d(16, 12, 2, 2)
        self.join, self.last = conv_norm(24, 12, 3, act=nn.SiLU), nn.Conv2d(20, 2, 1)
        self.aux = nn.Conv2d(16, 2, 1)

    def forward(self, x: Tensor) -> Maps:
        one = self.one(x)
        two = self.two(one)
        three = self.three(two)
        y = self.join(torch.cat([self.up(three), two], 1))
        y = F.interpolate(y, size=one.shape[2:], mode="bilinear", align_corners=False)
        return Maps(self.last(torch.cat([y, one], 1)), {"aux": torch.sigmoid(self.aux(three))})


@dataclass
class Detections(OrderedDict[str, Any]):
    """A dataclass that is a dict of its fields that are not None, as model outputs are."""

    logits: Tensor | None = None
    boxes: Tensor | None = None
    aux: tuple[dict[str, Tensor], ...] | None = None

    def __post_init__(self) -> None:
        for item in fields(self):
            if getattr(self, item.name) is not None:
                self[item.name] = getattr(self, item.name)


class Queries(nn.Module):
    """A detection head: learned queries, sine positions, one norm for them and for the data."""

    def __init__(self, dim: int = 16, count: int = 5) -> None:
        super().__init__()
        self.backbone = nn.Sequential(conv_norm(3, 8, 3, 4), conv_norm(8, dim, 3, 2))
        self.queries = nn.Embedding(count, dim)
        self.cross = nn.ModuleList(
            nn.MultiheadAttention(dim, 2, batch_first=True) for _ in range(2)
        )
        self.mlp = nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, dim))
        self.norm, self.dim = nn.LayerNorm(dim), dim
        self.classes, self.boxes = nn.Linear(dim, 4), nn.Linear(dim, 4)

    def places(self, x: Tensor) -> Tensor:
        ones = torch.ones(x.shape[0], *x.shape[2:], device=x.device)
        step = 10000 ** (torch.arange(self.dim // 4, dtype=torch.float32) * 4 / self.dim)
        parts = [(ones.cumsum(axis).unsqueeze(-1) * 2 * math.pi / 9) / step for axis in (1, 2)]
        waves = [part for angle in parts for part in (angle.sin(), angle.cos())]
        return torch.cat(waves, -1).flatten(1, 2)

    def forward(self, x: Tensor, return_dict: bool = True) -> Any:
        maps = self.backbone(x)
        memory, places = maps.flatten(2).permute(0, 2, 1), self.places(maps)
        y = self.norm(self.queries.weight).unsqueeze(0).expand(x.shape[0], -1, -1)
        heads = []
        for cross in self.cross:
            y = self.norm(y + cross(y, memory + places, memory, need_weights=False)[0])
            y = y + self.mlp(y)
            heads.append({"logits": self.classes(y), "boxes": self.boxes(y).sigmoid()})
        last = heads.pop()
        return Detections(**last, aux=tuple(heads)) if return_dict else tuple(last.values())
