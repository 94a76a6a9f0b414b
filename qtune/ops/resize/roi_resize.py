"""roi_resize: regions of a plane, resized bilinearly in integers (numerics.md, "pictures").

``RoiResize(x, roi; ...)``: x uint8 [N, H, W, C]; roi int32 [N, 4] holds left, top, right, bottom of
each picture, both ends inside; result uint8 [N, height, width, C]. A region may lie outside of the
picture: ``pad`` is what stands there. ``halve`` is 2 for a chroma plane, whose region is half as
large, else 1. Bytes go in and out, so both stages run the same integer arithmetic.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from qtune.ops.kernel import (
    Attrs,
    ConvertContext,
    FastKernel,
    FloatNode,
    HbirKernel,
    KernelNode,
    PlainValue,
)
from qtune.ops.quant.pixels import DOMAIN, plain_operand
from qtune.ops.registry import register_kernel

Array = np.ndarray[Any, Any]


def _taps(first: int, last: int, out: int, size: int) -> tuple[Array, Array, Array, Array]:
    """Both source indices of each output index, the second's weight, which lie inside."""
    length = last - first + 1
    step = np.maximum((2 * np.arange(out, dtype=np.int64) + 1) * length - out, 0) * 65536
    place = np.minimum((step + out) // (2 * out), (length - 1) * 65536)
    low = first + (place >> 16)
    high = np.minimum(low + 1, last)
    weight = ((place & 65535) + 128) >> 8
    inside = np.stack([(i >= 0) & (i < size) for i in (low, high)])
    return np.clip(low, 0, size - 1), np.clip(high, 0, size - 1), weight, inside


def _reference(attrs: Attrs, x: Array, roi: Array) -> Array:
    out = (attrs["height"], attrs["width"])
    regions = roi.astype(np.int64) // attrs["halve"]
    pictures = [_picture(attrs, p, r, out) for p, r in zip(x, regions, strict=True)]
    return np.stack(pictures)


def _picture(attrs: Attrs, picture: Array, roi: Array, out: tuple[int, int]) -> Array:
    left, top, right, bottom = (int(v) for v in roi)
    rows = _taps(top, bottom, out[0], picture.shape[0])
    columns = _taps(left, right, out[1], picture.shape[1])
    total = np.zeros((*out, picture.shape[2]), dtype=np.int64)
    for down in (0, 1):
        for across in (0, 1):
            values = picture[rows[down]][:, columns[across]].astype(np.int64)
            there = np.outer(rows[3][down], columns[3][across])
            values = np.where(there[..., None], values, attrs["pad"])
            weight = np.outer(_weight(rows[2], down), _weight(columns[2], across))
            total += values * weight[..., None]
    return (total + (1 << 15)) >> 16


def _weight(of_second: Array, tap: int) -> Array:
    return of_second if tap else 256 - of_second


def _run(attrs: Attrs, x: torch.Tensor, roi: torch.Tensor) -> torch.Tensor:
    n, height, width, channels = x.shape
    region = torch.div(roi.long(), attrs["halve"], rounding_mode="floor")
    left, top, right, bottom = region.unbind(1)
    rows = _torch_taps(top, bottom, attrs["height"], height)
    columns = _torch_taps(left, right, attrs["width"], width)
    flat = x.reshape(n * height * width, channels)
    start = torch.arange(n).view(n, 1, 1) * (height * width)
    total = torch.zeros(n, attrs["height"], attrs["width"], channels, dtype=torch.int64)
    for down in (0, 1):
        for across in (0, 1):
            y, x_at = rows[down].unsqueeze(2), columns[across].unsqueeze(1)
            index = start + y.clamp(0, height - 1) * width + x_at.clamp(0, width - 1)
            values = flat[index].long()
            there = (y >= 0) & (y < height) & (x_at >= 0) & (x_at < width)
            values = torch.where(there.unsqueeze(3), values, attrs["pad"])
            weight = _torch_weight(rows[2], down).unsqueeze(2) * _torch_weight(
                columns[2], across
            ).unsqueeze(1)
            total += values * weight.unsqueeze(3)
    return ((total + (1 << 15)) >> 16).to(torch.uint8)


def _torch_taps(
    first: torch.Tensor, last: torch.Tensor, out: int, size: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    length = (last - first + 1).unsqueeze(1)
    step = ((2 * torch.arange(out) + 1) * length - out).clamp_min(0) * 65536
    place = torch.minimum((step + out) // (2 * out), (length - 1) * 65536)
    low = first.unsqueeze(1) + (place >> 16)
    high = torch.minimum(low + 1, last.unsqueeze(1))
    return low, high, ((place & 65535) + 128) >> 8


def _torch_weight(of_second: torch.Tensor, tap: int) -> torch.Tensor:
    return of_second if tap else 256 - of_second


def _convert(ctx: ConvertContext, node: FloatNode) -> PlainValue:
    operands = [plain_operand(node, index) for index in (0, 1)]
    return PlainValue(ctx.add("QRoiResize", operands, dict(node.attrs), domain=DOMAIN))


def _fast(node: KernelNode) -> FastKernel:
    attrs = dict(node.attrs)
    return lambda x, roi: _run(attrs, x, roi)


register_kernel(HbirKernel("RoiResize", DOMAIN, run_float=_run, convert=_convert))
register_kernel(HbirKernel("QRoiResize", DOMAIN, reference=_reference, fast=_fast))
