"""Fast kernels of convolutions of volumes: stacks of maps, taps along the depth as channels.

A depth slice of the result is a convolution of the input's slices that its taps read, stacked as
channels. So the exact kernels of maps serve volumes too.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from qtune.arith_fast.gemm import GemmKernel, conv2d_kernel, conv_transpose2d_kernel
from qtune.arith_fast.held import offset
from qtune.ops.gemm.saturation import note_saturation
from qtune.ops.kernel import FastKernel, KernelNode
from qtune.ops.quant.codes import input_dtype

Array = np.ndarray[Any, Any]


def counting(kernel: GemmKernel) -> FastKernel:
    """Report what the kernel saturates to an open ``count_saturation`` block."""

    def run(*held: torch.Tensor) -> torch.Tensor:
        before = kernel.saturated
        result = kernel(*held)
        if kernel.saturated != before:
            note_saturation(kernel.saturated - before)
        return result

    return run


def fast_conv3d(node: KernelNode, weight: Array, finish: dict[str, Any]) -> FastKernel:
    """The kernel of QConv at rank 5; ``weight`` [O, I / group, kd, kh, kw] holds plain codes."""
    attrs = node.attrs
    (stride, *strides), (dilation, *dilations) = attrs["strides"], attrs["dilations"]
    front, top, left, back, bottom, right = attrs["pads"]
    outputs, inputs, taps, *kernel = weight.shape
    maps = conv2d_kernel(
        np.ascontiguousarray(weight).reshape(outputs, inputs * taps, *kernel),
        **finish,
        stride=tuple(strides),
        padding=(top, left, bottom, right),
        dilation=tuple(dilations),
        groups=attrs["group"],
    )
    zero = offset(input_dtype(node, 0))

    def stack(x: torch.Tensor) -> torch.Tensor:
        padded = F.pad(x, (0, 0, 0, 0, front, back), value=zero)
        return _windows(padded, taps, dilation, stride)

    return _on_slices(counting(maps), stack)


def fast_conv_transpose3d(node: KernelNode, weight: Array, finish: dict[str, Any]) -> FastKernel:
    """The kernel of QConvTranspose at rank 5; ``weight`` [I, O / group, kd, kh, kw].

    Along the depth it is a convolution of the slices spread out with zeros, taps mirrored.
    """
    attrs = node.attrs
    (stride, *strides), (dilation, *dilations) = attrs["strides"], attrs["dilations"]
    (extra, *extras), (front, top, left, back, bottom, right) = (
        attrs["output_padding"],
        attrs["pads"],
    )
    inputs, outputs, taps, *kernel = weight.shape
    stacked = np.moveaxis(weight[:, :, ::-1], 2, 1)
    maps = conv_transpose2d_kernel(
        np.ascontiguousarray(stacked).reshape(inputs * taps, outputs, *kernel),
        **finish,
        stride=tuple(strides),
        padding=(top, left, bottom, right),
        output_padding=tuple(extras),
        dilation=tuple(dilations),
        groups=attrs["group"],
    )
    zero, reach = offset(input_dtype(node, 0)), dilation * (taps - 1)

    def stack(x: torch.Tensor) -> torch.Tensor:
        batch, channels, depth, *size = x.shape
        spread = x.new_full((batch, channels, (depth - 1) * stride + 1, *size), zero)
        spread[:, :, ::stride] = x
        padded = F.pad(spread, (0, 0, 0, 0, reach - front, reach - back + extra), value=zero)
        return _windows(padded, taps, dilation, 1)

    return _on_slices(counting(maps), stack)


def _windows(x: torch.Tensor, taps: int, dilation: int, stride: int) -> torch.Tensor:
    """[N, C, D, H, W] as [N, D out, C * taps, H, W]: the slices that each result slice reads."""
    reach = dilation * (taps - 1) + 1
    seen = x.unfold(2, reach, stride)[..., ::dilation]
    return seen.permute(0, 2, 1, 5, 3, 4).flatten(2, 3)


def _on_slices(kernel: FastKernel, stack: Any) -> FastKernel:
    def run(x: torch.Tensor, *addend: torch.Tensor) -> torch.Tensor:
        stacked = stack(x)
        batch, depth = stacked.shape[:2]
        extra = [_slices(operand, batch, depth) for operand in addend]
        maps: torch.Tensor = kernel(stacked.flatten(0, 1), *extra)
        return maps.reshape(batch, depth, *maps.shape[1:]).transpose(1, 2).contiguous()

    return run


def _slices(volume: torch.Tensor, batch: int, depth: int) -> torch.Tensor:
    """An addend, which may broadcast, as one map for each slice of the result."""
    full = volume.expand(batch, -1, depth, -1, -1)
    return full.transpose(1, 2).flatten(0, 1)
