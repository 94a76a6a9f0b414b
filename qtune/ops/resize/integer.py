"""Resize on codes: positions of 16 fraction bits, weights of 256, one rounding (numerics 3)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from qtune.arith.resize import WEIGHT_BITS, bilinear_taps, nearest_index
from qtune.arith.rounding import Int64Array
from qtune.arith_fast.held import channels_last, offset
from qtune.dtype import qint8
from qtune.errors import ConvertError
from qtune.ops.kernel import (
    Attrs,
    ConvertContext,
    FastKernel,
    FloatConst,
    FloatNode,
    HbirKernel,
    KernelNode,
    QConst,
    QValue,
)
from qtune.ops.movement.moving import carry, initializer, one_scale, operand_value
from qtune.ops.quant.codes import input_dtype, onnx_type
from qtune.ops.resize.stepping import resize_float

Array = np.ndarray[Any, Any]

ONE = 1 << WEIGHT_BITS
SHIFT = 2 * WEIGHT_BITS
"""A result is a sum of codes times two weights: 16 fraction bits, rounded half up."""


def _run_float(attrs: Attrs, x: torch.Tensor, *inputs: Any) -> torch.Tensor:
    height, width = (int(size) for size in inputs[-1].tolist())
    corners = attrs["coordinate_transformation_mode"] == "align_corners"
    mode = "nearest-exact" if is_centered(attrs) else attrs["mode"].replace("linear", "bilinear")
    return resize_float(x, (height, width), mode, corners)


def is_centered(attrs: Attrs) -> bool:
    """Whether a Resize node takes the elements nearest to the middle of each output element."""
    coordinates = str(attrs["coordinate_transformation_mode"])
    return str(attrs["mode"]) == "nearest" and coordinates == "half_pixel"


def _convert(ctx: ConvertContext, node: FloatNode) -> Any:
    x, sizes = node.operands[0], node.operands[-1]
    if isinstance(x, QConst):
        one_scale(node, x)
        x = initializer(ctx, x)
    if not isinstance(x, QValue):
        rest = [operand_value(ctx, node, operand) for operand in node.operands[1:]]
        attrs = dict(node.attrs)
        return carry(ctx, node, lambda v: ctx.add("Resize", [v, *rest], attrs))
    if x.dtype != qint8:
        raise ConvertError(
            f"{node.name}: resize runs on int8 only, its input is {x.dtype}. Give the operator "
            "before it qint8."
        )
    if not isinstance(sizes, FloatConst):
        raise ConvertError(f"{node.name}: resize to a size that the graph computes; make it fixed")
    in_size = (node.input_shapes[0] or ())[2:]
    out_size = [int(size) for size in sizes.data]
    return replace(x, value=_emit(ctx, node, x, list(zip(in_size, out_size, strict=True))))


def _emit(ctx: ConvertContext, node: FloatNode, x: QValue, axes: list[tuple[int, int]]) -> Any:
    if node.attrs["mode"] == "nearest":
        centered = is_centered(node.attrs)
        index = [ctx.constant(nearest_index(*axis, centered), "index") for axis in axes]
        return ctx.add("QResizeNearest", [x.value, *index], {}, domain="qtune")
    corners = node.attrs["coordinate_transformation_mode"] == "align_corners"
    taps = [ctx.constant(part, "tap") for axis in axes for part in bilinear_taps(*axis, corners)]
    attrs = {"to": onnx_type(x.dtype)}
    return ctx.add("QResizeBilinear", [x.value, *taps], attrs, domain="qtune")


def _nearest_reference(attrs: Attrs, x: Array, rows: Array, columns: Array) -> Array:
    return np.take(np.take(x, rows, axis=2), columns, axis=3)


def _bilinear_reference(attrs: Attrs, x: Array, *taps: Array) -> Int64Array:
    y0, y1, wy, x0, x1, wx = (np.asarray(part, dtype=np.int64) for part in taps)
    codes = x.astype(np.int64)
    down = codes[:, :, y0] * (ONE - wy)[:, None] + codes[:, :, y1] * wy[:, None]
    total = down[..., x0] * (ONE - wx) + down[..., x1] * wx
    return np.right_shift(total + (1 << (SHIFT - 1)), SHIFT)


def _nearest_fast(node: KernelNode) -> FastKernel:
    rows, columns = (np.array(node.constants[i]) for i in (1, 2))
    row_index, column_index = torch.from_numpy(rows), torch.from_numpy(columns)

    @cache
    def torch_agrees(height: int, width: int) -> bool:
        return _torch_nearest(height, rows) and _torch_nearest(width, columns)

    def kernel(x: torch.Tensor) -> torch.Tensor:
        if x.dtype == torch.uint8 and torch_agrees(x.shape[2], x.shape[3]):
            return channels_last(F.interpolate(x, size=(len(rows), len(columns)), mode="nearest"))
        grid = x.permute(0, 2, 3, 1)[:, row_index[:, None], column_index]
        return channels_last(grid.permute(0, 3, 1, 2))

    return kernel


def _torch_nearest(size: int, index: Array) -> bool:
    """Whether torch, which rounds positions in float32, takes the same elements."""
    numbers = torch.arange(size, dtype=torch.float32).view(1, 1, 1, size)
    taken = F.interpolate(numbers, size=(1, len(index)), mode="nearest")
    return bool((taken.view(-1).numpy() == index).all())


def _bilinear_fast(node: KernelNode) -> FastKernel:
    taps = [np.array(node.constants[i]) for i in range(1, 7)]
    generic = _tap_sums(taps, offset(input_dtype(node, 0)))

    @cache
    def halving(height: int, width: int) -> bool:
        return _is_power_of_two(height, taps[:3]) and _is_power_of_two(width, taps[3:])

    def kernel(x: torch.Tensor) -> torch.Tensor:
        if not halving(x.shape[2], x.shape[3]):
            return generic(x)
        out = (len(taps[0]), len(taps[3]))
        # The weights sum to 1: a half added before is a half added after.
        values = F.interpolate(x.float().add_(0.5), size=out, mode="bilinear")
        return channels_last(values.to(torch.uint8))

    return kernel


def _is_power_of_two(size: int, taps: list[Array]) -> bool:
    """Whether torch's float32 weights are exactly these: the step is a power of two >= 2**-6.

    Positions and weights then are multiples of 1/128 in float32 too; a code and a half has 9 bits,
    a product with two weights 23, so that no float32 operation rounds and torch's faster kernel
    gives the same bits.
    """
    out = len(taps[0])
    if max(size, out) % min(size, out) or out > 64 * size:
        return False
    ratio = max(size, out) // min(size, out)
    same = all((a == b).all() for a, b in zip(bilinear_taps(size, out), taps, strict=True))
    return same and ratio & (ratio - 1) == 0


def _tap_sums(taps: list[Array], zero: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """Both axes in float32, exact: a result has at most 8 + 16 bits. Held codes are >= 0."""
    y0, y1, x0, x1 = (torch.from_numpy(taps[i]) for i in (0, 1, 3, 4))
    wy, wx = (torch.from_numpy(taps[i]).float().view(-1, 1) for i in (2, 5))
    height, width = len(taps[0]), len(taps[3])

    def kernel(x: torch.Tensor) -> torch.Tensor:
        n, c = x.shape[:2]
        result = torch.empty((n, height, width, c), dtype=torch.uint8)
        for image, out in zip(x.permute(0, 2, 3, 1), result, strict=True):
            across = _blend(image.float(), 1, x0, x1, wx)
            down = _blend(across.reshape(x.shape[2], -1), 0, y0, y1, wy)
            down.add_(1 << (SHIFT - 1)).mul_(2.0**-SHIFT)
            out.copy_(down.view(height, width, c))
        return channels_last(result.permute(0, 3, 1, 2))

    return kernel


def _blend(
    x: torch.Tensor, axis: int, first: torch.Tensor, second: torch.Tensor, weight: torch.Tensor
) -> torch.Tensor:
    left = x.index_select(axis, first).mul_(ONE - weight)
    return left.addcmul_(x.index_select(axis, second), weight)


RESIZE_KERNELS = (
    HbirKernel("Resize", run_float=_run_float, convert=_convert),
    HbirKernel("QResizeNearest", "qtune", reference=_nearest_reference, fast=_nearest_fast),
    HbirKernel("QResizeBilinear", "qtune", reference=_bilinear_reference, fast=_bilinear_fast),
)
