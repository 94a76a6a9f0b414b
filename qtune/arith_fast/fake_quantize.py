"""Fake-quantize with its straight-through gradient, and quantize, in torch (numerics.md section 1).

``scale`` is a float32 tensor (or a float) with one element, or with one per element of ``axis``.
float16 and bfloat16 compute in float32, float64 in float64; the result has the input's dtype.
"""

from __future__ import annotations

import math
from typing import Any, cast

import torch

from qtune.arith.quantize import RANGE_SLACK
from qtune.arith_fast.blocks import block_elements, spans, storage_order
from qtune.arith_fast.buffers import empty_map
from qtune.arith_fast.held import channels_last, held_dtype, offset, quant_dtype_of
from qtune.arith_fast.native.quantizing import native_quantize
from qtune.dtype import QuantDType
from qtune.errors import ArgumentError, NonFiniteError


def fake_quantize(
    x: torch.Tensor, scale: torch.Tensor | float, qmin: int, qmax: int, axis: int = -1
) -> torch.Tensor:
    """Return ``clamp(floor(x / scale + 0.5), qmin, qmax) * scale`` in the dtype of ``x``.

    The gradient is passed on where the code before clamping lies in ``qmin .. qmax``, else 0.
    NaN passes, infinities saturate. Any strides, empty tensors too.
    """
    factor = _scale_tensor(x, scale)
    _check(x, factor, axis)
    if torch.is_grad_enabled() and x.requires_grad:
        result = _FakeQuantize.apply(x, factor, qmin, qmax, axis)  # type: ignore[no-untyped-call]
        return cast(torch.Tensor, result)
    return _quantized(x.detach(), factor, qmin, qmax, axis, with_mask=False)[0]


def clip_only(
    x: torch.Tensor, scale: torch.Tensor | float, qmin: int, qmax: int, axis: int = -1
) -> torch.Tensor:
    """Clamp the elements out of range to ``qmin * scale .. qmax * scale``; leave the others."""
    factor = _scale_tensor(x, scale)
    _check(x, factor, axis)
    wide = _compute(x)
    steps = _broadcast(factor, wide.dtype, wide.dim(), axis)
    clipped = torch.clamp(wide, qmin * steps, qmax * steps)
    return torch.where(in_range(x, factor, qmin, qmax, axis), x, clipped.to(x.dtype))


def round_only(
    x: torch.Tensor, scale: torch.Tensor | float, qmin: int, qmax: int, axis: int = -1
) -> torch.Tensor:
    """Fake-quantize the elements in range; leave the others. The gradient is 1 everywhere."""
    mask = in_range(x, scale, qmin, qmax, axis)
    rounded = torch.where(mask, fake_quantize(x.detach(), scale, qmin, qmax, axis), x.detach())
    if not (torch.is_grad_enabled() and x.requires_grad):
        return rounded
    result = _StraightThrough.apply(x, rounded)  # type: ignore[no-untyped-call]
    return cast(torch.Tensor, result)


def in_range(
    x: torch.Tensor, scale: torch.Tensor | float, qmin: int, qmax: int, axis: int = -1
) -> torch.Tensor:
    """Return the bool mask of elements that do not clip, as ``qtune.arith.quantize.in_range``."""
    factor = _scale_tensor(x, scale)
    _check(x, factor, axis)
    wide = x.detach().double()
    steps = _broadcast(factor, wide.dtype, wide.dim(), axis) * RANGE_SLACK
    return (wide >= (qmin - 0.5) * steps) & (wide <= (qmax + 0.5) * steps)


def quantize_held(
    x: torch.Tensor, scale: torch.Tensor | float, dtype: QuantDType, axis: int = -1
) -> torch.Tensor:
    """Return held codes of ``x`` (see ``qtune.arith_fast.held``); NaN raises ``NonFiniteError``."""
    factor = _scale_tensor(x, scale)
    _check(x, factor, axis)
    x = x.detach()
    if factor.numel() == 1:
        result = empty_map(x.shape, held_dtype(dtype))
        bounds = (dtype.qmin, dtype.qmax)
        has_nan = native_quantize(x, float(factor), offset(dtype), bounds, result)
        if has_nan:
            _refuse_nan(x)
        if has_nan is not None:
            return result
    result = torch.empty_like(x, dtype=held_dtype(dtype))
    source, target = storage_order(x), storage_order(result)
    if factor.numel() > 1 or source is None or target is None or x.stride() != result.stride():
        _quantize_block(x, _codes(x, factor, axis), dtype, result)
        return channels_last(result)
    for start, stop in spans(len(source), block_elements()):
        block = source[start:stop]
        _quantize_block(x, _codes(block, factor, -1), dtype, target[start:stop])
    return channels_last(result)


def dequantize_held(q: torch.Tensor, scale: torch.Tensor | float, axis: int = -1) -> torch.Tensor:
    """Return float32 ``code * scale`` of held codes."""
    values = q.to(torch.float32).sub_(offset(quant_dtype_of(q)))
    return values.mul_(_broadcast(_scale_tensor(values, scale), values.dtype, values.dim(), axis))


def _quantize_block(
    x: torch.Tensor, codes: torch.Tensor, dtype: QuantDType, target: torch.Tensor
) -> None:
    """Clamp ``codes`` of a part of ``x``, refuse NaN, and hold them in ``target``."""
    codes.clamp_(dtype.qmin, dtype.qmax)
    if bool(torch.isnan(codes.sum())):  # clamped codes are finite otherwise
        _refuse_nan(x)
    target.copy_(codes.to(torch.int16).add_(offset(dtype)))


def _refuse_nan(x: torch.Tensor) -> None:
    raise NonFiniteError(
        f"quantize got {int(torch.isnan(x).sum())} NaN in a tensor of shape {tuple(x.shape)}: "
        "NaN has no code. Remove the NaN from the data or from the operator that makes it."
    )


class _StraightThrough(torch.autograd.Function):
    """The second argument, with the gradient of the first."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0], None


class _FakeQuantize(torch.autograd.Function):
    """Forward and straight-through gradient of :func:`fake_quantize`."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, scale: torch.Tensor, qmin: int, qmax: int, axis: int
    ) -> torch.Tensor:
        result, mask = _quantized(x, scale, qmin, qmax, axis, with_mask=True)
        ctx.save_for_backward(mask)
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (mask,) = ctx.saved_tensors
        return grads[0] * mask, None, None, None, None


def _quantized(
    x: torch.Tensor, scale: torch.Tensor, qmin: int, qmax: int, axis: int, with_mask: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the fake-quantized ``x`` and, if asked, int8 ones where the gradient passes."""
    small = x.numel() <= block_elements()
    if not small and storage_order(x) is None:
        x = x.contiguous()
    result = torch.empty_like(x)
    mask = torch.empty_like(x, dtype=torch.int8) if with_mask else None
    if small:
        factor = _broadcast(scale, _compute_dtype(x), x.dim(), axis)
        _fill_block(x, factor, (qmin, qmax), result, mask)
        return result, mask
    source, factor = _in_rows(x, x, scale, axis), _row_factor(x, scale, axis)
    target = _in_rows(result, x, scale, axis)
    passing = None if mask is None else _in_rows(mask, x, scale, axis)
    rows = len(source) if x.device.type != "cpu" else block_elements() * len(source) // x.numel()
    for start, stop in spans(len(source), rows):
        _fill_block(
            source[start:stop],
            factor[start:stop] if factor.shape[:1] == source.shape[:1] else factor,
            (qmin, qmax),
            target[start:stop],
            None if passing is None else passing[start:stop],
        )
    return result, mask


def _fill_block(
    x: torch.Tensor,
    factor: torch.Tensor,
    grid: tuple[int, int],
    result: torch.Tensor,
    mask: torch.Tensor | None,
) -> None:
    """The chain on one block: in place on ``result`` where its dtype is the one computed in."""
    wide = _compute(x)
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
    factor = scale.to(_compute_dtype(x))
    if scale.numel() == 1:
        return factor.view(())
    return factor.view(-1, 1) if _outer(x, axis) == 1 else factor.view(1, -1, 1)


def _outer(x: torch.Tensor, axis: int) -> int:
    """Elements of all dimensions that lie outside of ``axis`` in memory."""
    order = list(range(x.dim())) if x.is_contiguous() else [0, 2, 3, 1]
    before = order[: order.index(axis % x.dim())]
    return math.prod(x.shape[i] for i in before)


def _codes(x: torch.Tensor, scale: torch.Tensor, axis: int) -> torch.Tensor:
    """``floor(x / scale + 0.5)`` in the compute dtype, a new tensor."""
    wide = _compute(x)
    return torch.div(wide, _broadcast(scale, wide.dtype, wide.dim(), axis)).add_(0.5).floor_()


def _compute(x: torch.Tensor) -> torch.Tensor:
    return x.to(_compute_dtype(x))


def _compute_dtype(x: torch.Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _scale_tensor(x: torch.Tensor, scale: torch.Tensor | float) -> torch.Tensor:
    if isinstance(scale, torch.Tensor):
        if scale.dtype == torch.float32 and not scale.requires_grad and scale.dim() == 1:
            return scale
        return scale.detach().to(torch.float32).reshape(-1)
    return torch.tensor([scale], dtype=torch.float32, device=x.device)


def _broadcast(scale: torch.Tensor, dtype: torch.dtype, rank: int, axis: int) -> torch.Tensor:
    factor = scale.to(dtype)
    if factor.numel() == 1:
        return factor.view(())
    shape = [1] * rank
    shape[axis] = -1
    return factor.view(shape)


def _check(x: torch.Tensor, scale: torch.Tensor, axis: int) -> None:
    if not x.is_floating_point():
        raise ArgumentError(f"expected a floating point tensor to quantize, got {x.dtype}")
    if scale.numel() == 1:
        return
    if not -x.dim() <= axis < x.dim() or scale.numel() != x.shape[axis]:
        raise ArgumentError(
            f"{scale.numel()} scales do not fit axis {axis} of a tensor of shape {tuple(x.shape)}; "
            "give one scale, or one per element of that axis"
        )
