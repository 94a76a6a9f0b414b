"""Deformable convolution in float: the function, and the layer that torch lacks."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import handle_torch_function, has_torch_function

from qtune.errors import ArgumentError
from qtune.ops.gemm.geometry import Ints, per_axis


class DeformConv2d(nn.Module):
    """Convolution whose taps are moved by an offset each, as in torchvision's layer of this name.

    ``forward(x, offset, mask=None)``: x [N, in, H, W]; offset [N, 2 * G * kh * kw, h, w] holds
    (dy, dx) of each tap for each of G offset groups; mask [N, G * kh * kw, h, w] multiplies each
    tap; gives [N, out, h, w]. G follows from the offset's channels. Raises ``ArgumentError`` where
    the channels do not fit.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, int],
        stride: int | tuple[int, int] = 1,
        padding: int | tuple[int, int] = 0,
        dilation: int | tuple[int, int] = 1,
        groups: int = 1,
        bias: bool = True,
    ) -> None:
        super().__init__()
        if in_channels % groups or out_channels % groups:
            raise ArgumentError(
                f"DeformConv2d: {in_channels} input and {out_channels} output channels must be "
                f"multiples of groups={groups}"
            )
        self.in_channels, self.out_channels, self.groups = in_channels, out_channels, groups
        self.kernel_size, self.stride = per_axis(kernel_size, 2), per_axis(stride, 2)
        self.padding, self.dilation = per_axis(padding, 2), per_axis(dilation, 2)
        shape = (out_channels, in_channels // groups, *self.kernel_size)
        self.weight = nn.Parameter(torch.empty(shape))
        self.bias = nn.Parameter(torch.empty(out_channels)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the parameters as ``nn.Conv2d`` does."""
        nn.init.kaiming_uniform_(self.weight, a=5**0.5)
        if self.bias is not None:
            bound = prod(self.weight.shape[1:]) ** -0.5
            nn.init.uniform_(self.bias, -bound, bound)

    def forward(
        self, x: torch.Tensor, offset: torch.Tensor, mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """See the class."""
        return deform_conv2d(
            x,
            offset,
            self.weight,
            self.bias,
            mask,
            stride=self.stride,
            padding=self.padding,
            dilation=self.dilation,
            groups=self.groups,
        )

    def extra_repr(self) -> str:
        """The arguments."""
        return (
            f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, "
            f"stride={self.stride}, padding={self.padding}, dilation={self.dilation}, "
            f"groups={self.groups}, bias={self.bias is not None}"
        )


def offset_groups(channels: int, kernel: Any) -> int:
    """G of an offset of ``2 * G * kh * kw`` channels."""
    taps = prod(kernel)
    if channels % (2 * taps):
        raise ArgumentError(
            f"deform_conv2d: the offset has {channels} channels; expected a multiple of "
            f"2 * {' * '.join(map(str, kernel))}, (dy, dx) for each tap"
        )
    groups: int = channels // (2 * taps)
    return groups


def tap_positions(
    kernel: Ints, stride: Ints, padding: Ints, dilation: Ints, size: Ints
) -> np.ndarray[Any, Any]:
    """int64 [taps, h, w, 2]: where each tap of each output lies without offset, (x, y)."""
    axes = [
        np.arange(k)[:, None] * d + np.arange(out) * s - p
        for k, d, out, s, p in zip(kernel, dilation, size, stride, padding, strict=True)
    ]
    rows, columns = axes[0][:, None, :, None], axes[1][None, :, None, :]
    shape = (*kernel, *size)
    both = [np.broadcast_to(part, shape) for part in (columns, rows)]
    return np.stack(both, -1).reshape(-1, *size, 2).astype(np.int64)


def deform_conv2d(
    x: torch.Tensor,
    offset: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    modulation: torch.Tensor | None = None,
    *,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    groups: int,
) -> torch.Tensor:
    """Sample every tap bilinearly (zeros outside), times its modulation, then a 1 x 1 convolution.

    Shapes as in :class:`DeformConv2d`; weight [out, in / groups, kh, kw].
    """
    tensors = (x, offset, weight, bias, modulation)
    if has_torch_function(tensors):  # one call for whoever records calls
        geometry: Any = {
            "stride": stride,
            "padding": padding,
            "dilation": dilation,
            "groups": groups,
        }
        result: torch.Tensor = handle_torch_function(deform_conv2d, tensors, *tensors, **geometry)
        return result
    batch, channels, height, width = x.shape
    kernel, size = tuple(weight.shape[2:]), tuple(offset.shape[2:])
    parts, taps = offset_groups(offset.shape[1], kernel), prod(kernel)
    moves = offset.reshape(batch * parts, taps, 2, *size).flip(2).permute(0, 1, 3, 4, 2)
    base = torch.from_numpy(tap_positions(kernel, stride, padding, dilation, size))
    at = (moves + base.to(moves)).flatten(1, 2)
    scale = torch.tensor([width, height], dtype=at.dtype, device=at.device)
    maps = x.reshape(batch * parts, channels // parts, height, width)
    taken = F.grid_sample(maps, (at * 2.0 + 1.0) / scale - 1.0, align_corners=False)
    if modulation is not None:
        taken = taken * modulation.reshape(batch * parts, 1, taps * size[0], size[1])
    columns = taken.reshape(batch, channels * taps, *size)
    flat = weight.reshape(weight.shape[0], -1, 1, 1)
    return F.conv2d(columns, flat, bias, groups=groups)
