"""Gradients of fake-quantize: straight through, and of a step size that is learned.

Straight through: the rounding passes the gradient on, what saturates has none (numerics.md
section 5). What backward needs of an element is one bit: whether its code was in range.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch

from qtune.arith_fast.blocks import block_elements, spans, storage_order
from qtune.arith_fast.fake_quantize_pass import broadcast, compute_dtype, native_rows, quantized
from qtune.arith_fast.native.fake_quantizing import Rows, native_backward, native_forward


def masked(
    x: torch.Tensor, scale: torch.Tensor, grid: tuple[int, int], axis: int, packed: bool
) -> torch.Tensor:
    """Fake-quantized ``x`` whose gradient is 0 where the code left ``grid``."""
    result = _FakeQuantize.apply(x, scale, grid, axis, packed)  # type: ignore[no-untyped-call]
    return cast(torch.Tensor, result)


def straight_through(x: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """``value`` with the gradient of ``x``."""
    if not (torch.is_grad_enabled() and x.requires_grad):
        return value
    result = _StraightThrough.apply(x, value)  # type: ignore[no-untyped-call]
    return cast(torch.Tensor, result)


def learned(
    x: torch.Tensor,
    scale: torch.Tensor,
    grid: tuple[int, int],
    axis: int,
    factor: float,
    inside: bool,
) -> torch.Tensor:
    """Fake-quantized ``x`` with gradients of ``x`` and, times ``factor``, of ``scale``."""
    result = _Learned.apply(x, scale, grid, axis, factor, inside)  # type: ignore[no-untyped-call]
    return cast(torch.Tensor, result)


class _StraightThrough(torch.autograd.Function):
    """The second argument, with the gradient of the first."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0], None


class _FakeQuantize(torch.autograd.Function):
    """Keeps the mask of the codes in range, packed to bits where asked."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        scale: torch.Tensor,
        grid: tuple[int, int],
        axis: int,
        packed: bool,
    ) -> torch.Tensor:
        ctx.rows = native_rows(x, scale, axis) if packed else None
        if ctx.rows is not None:
            result = torch.empty_like(x)
            mask = native_forward(x, scale, grid, ctx.rows, result, with_mask=True)
        else:
            result, mask = quantized(x, scale, *grid, axis, with_mask=True)
            if packed and mask is not None and mask.device.type == "cpu":
                mask = pack(mask)
        ctx.place = result.shape, result.stride()
        ctx.save_for_backward(mask)
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (mask,) = ctx.saved_tensors
        return _where_masked(grads[0], mask, ctx.rows, *ctx.place), None, None, None, None


def _where_masked(
    gradient: torch.Tensor,
    mask: torch.Tensor,
    rows: Rows | None,
    shape: torch.Size,
    stride: Sequence[int],
) -> torch.Tensor:
    """The gradient times the mask of a result of that shape and stride."""
    same = gradient.dtype == torch.float32 and gradient.stride() == stride
    if rows is not None and same and not torch.is_grad_enabled():  # enabled: differentiated again
        result = torch.empty_like(gradient)
        native_backward(gradient, mask, rows, result)
        return result
    if mask.dtype == torch.uint8:
        mask = unpack(mask, shape, stride)
    return gradient * mask


class _Learned(torch.autograd.Function):
    """Keeps its inputs; backward computes the codes again."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        scale: torch.Tensor,
        grid: tuple[int, int],
        axis: int,
        factor: float,
        inside: bool,
    ) -> torch.Tensor:
        # a copy: the next step may bring the parameter back to positive values in place
        ctx.save_for_backward(x, scale.detach().clone())
        ctx.grid, ctx.axis, ctx.factor, ctx.inside = grid, axis, factor, inside
        return quantized(x, scale, *grid, axis, with_mask=False)[0]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        x, scale = ctx.saved_tensors
        gradient = grads[0]
        ordered = storage_order(x) is not None and x.stride() == gradient.stride()
        if scale.numel() > 1 or not ordered or torch.is_grad_enabled():
            of_x, parts = _slopes(x, gradient, _broadcast_on(x, scale, ctx.axis), ctx)
            total = _per_scale(parts, scale, ctx.axis)
        else:
            of_x, total = _in_blocks(x, gradient, scale, ctx)
        of_scale = (ctx.factor * total).to(scale.dtype).reshape(scale.shape)
        return of_x, of_scale if ctx.needs_input_grad[1] else None, None, None, None, None


def _slopes(
    x: torch.Tensor, gradient: torch.Tensor, step: torch.Tensor, ctx: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradient of ``x``, and what each element adds to that of its scale."""
    steps = torch.div(x.to(compute_dtype(x)), step)
    codes = torch.add(steps, 0.5).floor_()
    clamped = codes.clamp(*ctx.grid)
    passes = codes.eq_(clamped)  # ones and zeros; in place, as comparisons to bool are slow
    of_x = gradient * passes.to(gradient.dtype)
    if ctx.inside:
        low, high = ctx.grid
        slope = clamped.sub_(steps.clamp_(low - 1, high + 1).mul_(passes))  # infinities times 0
    else:
        slope = clamped.mul_(passes.neg_().add_(1))
    return of_x, slope.nan_to_num_(nan=0.0).mul_(gradient)


def _in_blocks(
    x: torch.Tensor, gradient: torch.Tensor, scale: torch.Tensor, ctx: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """As :func:`_slopes` for one scale, block by block, with the sum in float64."""
    of_x = torch.empty_like(gradient)
    flat = [cast(torch.Tensor, storage_order(tensor)) for tensor in (x, gradient, of_x)]
    step = _broadcast_on(x, scale, -1)
    total = torch.zeros((), dtype=torch.float64, device=x.device)
    for start, stop in spans(x.numel(), block_elements()):
        source, given, target = (tensor[start:stop] for tensor in flat)
        passed, parts = _slopes(source, given, step, ctx)
        target.copy_(passed)
        total += parts.sum(dtype=torch.float64)
    return of_x, total


def _broadcast_on(x: torch.Tensor, scale: torch.Tensor, axis: int) -> torch.Tensor:
    """The scale in the dtype that ``x`` is computed in, shaped to broadcast on it."""
    return broadcast(scale, compute_dtype(x), x.dim(), axis)


def _per_scale(parts: torch.Tensor, scale: torch.Tensor, axis: int) -> torch.Tensor:
    """The sum over all elements that share a scale, in float64."""
    if scale.numel() == 1:
        return parts.sum(dtype=torch.float64)
    others = [d for d in range(parts.dim()) if d != axis % parts.dim()]
    return parts.sum(others, dtype=torch.float64) if others else parts.double()


def pack(mask: torch.Tensor) -> torch.Tensor:
    """The bits of a dense mask of zeros and ones, in the order of its memory: uint8 [1, bytes]."""
    flat = mask.as_strided((1, mask.numel()), (mask.numel(), 1))
    return torch.from_numpy(np.packbits(flat.numpy(), axis=1, bitorder="little"))


def unpack(bits: torch.Tensor, shape: torch.Size, stride: Sequence[int]) -> torch.Tensor:
    """The mask of ones and zeros, int8, whose bits lie in rows of equal length."""
    count = shape.numel() // max(len(bits), 1)
    flat = np.unpackbits(bits.numpy(), axis=1, count=count, bitorder="little")
    mask = torch.from_numpy(np.ascontiguousarray(flat)).view(torch.int8)
    return mask.as_strided(tuple(shape), tuple(stride))
