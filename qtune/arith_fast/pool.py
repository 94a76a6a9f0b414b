"""Pooling on held codes: maxima and exact window sums (numerics.md sections 3 and 7).

Both are separable: first over the rows of a window, then over its columns, each as an element-wise
operation on shifted slices of the map. torch's own ``max_pool2d`` refuses some 8-bit maps.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F

from qtune.arith_fast.held import channels_last, offset, quant_dtype_of
from qtune.arith_fast.native.windows import native_windows
from qtune.errors import ArgumentError

Combine = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def max_pool2d_held(
    x: torch.Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int] = (0, 0, 0, 0),
    dilation: Sequence[int] = (1, 1),
    ceil_mode: bool = False,
) -> torch.Tensor:
    """Return the window maxima of a held map [N, C, H, W]; pads hold qmin.

    ``padding`` (top, left, bottom, right). ``ceil_mode`` adds windows that start inside the map.
    """
    dtype = quant_dtype_of(x)
    size = output_size(x.shape[2:], kernel, stride, padding, dilation, ceil_mode)
    found = native_windows(x, kernel, stride, padding, dilation, size, sums=False)
    if found is not None:
        return found
    padded = _padded(x, kernel, stride, padding, dilation, size, dtype.qmin + offset(dtype))
    for axis in range(2):
        slices = _slices(padded, axis, kernel[axis], stride[axis], dilation[axis], size[axis])
        padded = functools.reduce(torch.maximum, slices)
    return channels_last(padded)


def window_sum(
    x: torch.Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int] = (0, 0, 0, 0),
    ceil_mode: bool = False,
) -> torch.Tensor:
    """Return the int32 sums of codes over the windows of a held map; pads count as code 0."""
    zero = offset(quant_dtype_of(x))
    size = output_size(x.shape[2:], kernel, stride, padding, (1, 1), ceil_mode)
    found = native_windows(x, kernel, stride, padding, (1, 1), size, sums=True)
    if found is not None:
        return found
    if size == (1, 1) and tuple(kernel) == tuple(x.shape[2:]) and not any(padding):
        total = x.sum(dim=(2, 3), keepdim=True, dtype=torch.int32)
    else:
        total = _padded(x, kernel, stride, padding, (1, 1), size, zero)
        for axis in range(2):
            first, *rest = _slices(total, axis, kernel[axis], stride[axis], 1, size[axis])
            total = functools.reduce(torch.Tensor.add_, rest, first.to(torch.int32, copy=True))
    return channels_last(total.sub_(zero * kernel[0] * kernel[1]))


def output_size(
    size: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int] = (1, 1),
    ceil_mode: bool = False,
) -> tuple[int, int]:
    """Return the pooled (height, width); a window that would start in the end pad is left out."""
    result = []
    for axis in range(2):
        before, after = padding[axis], padding[axis + 2]
        room = size[axis] + before + after - dilation[axis] * (kernel[axis] - 1) - 1
        steps = -(-room // stride[axis]) if ceil_mode else room // stride[axis]
        if steps < 0:
            raise ArgumentError(
                f"a window of {tuple(kernel)} does not fit a map of {tuple(size)} with pads "
                f"{tuple(padding)}"
            )
        if ceil_mode and steps * stride[axis] >= size[axis] + before:
            steps -= 1
        result.append(steps + 1)
    return result[0], result[1]


def _padded(
    x: torch.Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    size: tuple[int, int],
    fill: int,
) -> torch.Tensor:
    """The map with pads up to the reach of its last windows (cut where that is less)."""
    reach = [(size[i] - 1) * stride[i] + dilation[i] * (kernel[i] - 1) + 1 for i in range(2)]
    grow = [reach[i] - x.shape[2 + i] - padding[i] for i in range(2)]
    pads = (padding[1], grow[1], padding[0], grow[0])
    return F.pad(x, pads, value=fill) if any(pads) else x


def _slices(
    x: torch.Tensor, axis: int, kernel: int, stride: int, dilation: int, size: int
) -> list[torch.Tensor]:
    """The map as each tap along ``axis`` (0 rows, 1 columns) sees it."""
    length = (size - 1) * stride + 1
    taps = []
    for tap in range(kernel):
        window = slice(tap * dilation, tap * dilation + length, stride)
        taps.append(x[:, :, window] if axis == 0 else x[:, :, :, window])
    return taps
