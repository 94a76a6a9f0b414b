"""The element-wise pass of fake-quantize on a block of memory, with the mask of its gradient.

``scale`` is float32 [1] or [channels along axis]. Nothing is checked and no gradient is recorded.
"""

from __future__ import annotations

import math
from typing import cast

import torch

from qtune.arith_fast.blocks import block_elements, spans, storage_order
from qtune.arith_fast.native.fake_quantizing import Rows, native_forward, usable

SHORTEST = 16
"""Elements of a row from which on a compiled kernel pays."""


def quantized(
    x: torch.Tensor, scale: torch.Tensor, qmin: int, qmax: int, axis: int, with_mask: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the fake-quantized ``x`` and, if asked, int8 ones where the gradient passes."""
    rows = None if with_mask else native_rows(x, scale, axis)
    if rows is not None:
        result = torch.empty_like(x)
        native_forward(x, scale, (qmin, qmax), rows, result, with_mask=False)
        return result, None
    small = x.numel() <= block_elements()
    if not small and storage_order(x) is None:
        x = x.contiguous()
    result = torch.empty_like(x)
    mask = torch.empty_like(x, dtype=torch.int8) if with_mask else None
    if small:
        factor = broadcast(scale, compute_dtype(x), x.dim(), axis)
        _fill_block(x, factor, (qmin, qmax), result, mask)
        return result, mask
    source, factor = _in_rows(x, x, scale, axis), _row_factor(x, scale, axis)
    target = _in_rows(result, x, scale, axis)
    passing = None if mask is None else _in_rows(mask, x, scale, axis)
    step = len(source) if x.device.type != "cpu" else block_elements() * len(source) // x.numel()
    for start, stop in spans(len(source), step):
        _fill_block(
            source[start:stop],
            factor[start:stop] if factor.shape[:1] == source.shape[:1] else factor,
            (qmin, qmax),
            target[start:stop],
            None if passing is None else passing[start:stop],
        )
    return result, mask


def native_rows(x: torch.Tensor, scale: torch.Tensor, axis: int) -> Rows | None:
    """How a compiled kernel walks ``x``; ``None``: it does not."""
    if not usable(x) or storage_order(x) is None:
        return None
    if scale.numel() == 1:
        return Rows(1, x.numel(), 1)
    rows = _outer(x, axis) * scale.numel()
    count = x.numel() // rows
    return Rows(rows, count, scale.numel()) if count >= SHORTEST else None


def _fill_block(
    x: torch.Tensor,
    factor: torch.Tensor,
    grid: tuple[int, int],
    result: torch.Tensor,
    mask: torch.Tensor | None,
) -> None:
    """The chain on one block: in place on ``result`` where its dtype is the one computed in."""
    wide = x.to(compute_dtype(x))
    in_place = mask is None and result.dtype == wide.dtype
    codes = torch.div(wide, factor, out=result) if in_place else torch.div(wide, factor)
    codes.add_(0.5).floor_()
    if mask is None:
        clamped = codes.clamp_(*grid)
    else:
        clamped = codes.clamp(*grid)
        mask.copy_(codes.eq_(clamped))  # in place: a comparison to bool has no vector form
    clamped.mul_(factor)
    if not in_place:
        result.copy_(clamped)


def _in_rows(x: torch.Tensor, like: torch.Tensor, scale: torch.Tensor, axis: int) -> torch.Tensor:
    """View ``x`` in memory order: flat, or ``[channels, rest]``, or ``[outer, channels, rest]``."""
    flat = cast(torch.Tensor, storage_order(x))
    if scale.numel() == 1:
        return flat
    outer = _outer(like, axis)
    if outer == 1:
        return flat.view(scale.numel(), -1)
    return flat.view(outer, scale.numel(), -1)


def _row_factor(x: torch.Tensor, scale: torch.Tensor, axis: int) -> torch.Tensor:
    """The scale in the dtype computed in, shaped to broadcast on the rows of ``_in_rows``."""
    factor = scale.to(compute_dtype(x))
    if scale.numel() == 1:
        return factor.view(())
    return factor.view(-1, 1) if _outer(x, axis) == 1 else factor.view(1, -1, 1)


def _outer(x: torch.Tensor, axis: int) -> int:
    """Elements of all dimensions that lie outside of ``axis`` in memory."""
    order = list(range(x.dim())) if x.is_contiguous() else [0, 2, 3, 1]
    before = order[: order.index(axis % x.dim())]
    return math.prod(x.shape[i] for i in before)


def compute_dtype(x: torch.Tensor) -> torch.dtype:
    """float64 for float64, float32 for all else."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def broadcast(scale: torch.Tensor, dtype: torch.dtype, rank: int, axis: int) -> torch.Tensor:
    """The scale in ``dtype``, shaped to broadcast on a tensor of ``rank`` dimensions."""
    factor = scale.to(dtype)
    if factor.numel() == 1:
        return factor.view(())
    shape = [1] * rank
    shape[axis] = -1
    return factor.view(shape)
