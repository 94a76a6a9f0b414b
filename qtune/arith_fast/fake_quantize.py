"""Fake-quantize with its straight-through gradient, and quantize, in torch (numerics.md section 1).

``scale`` is a float32 tensor (or a float) with one element, or with one per element of ``axis``.
float16 and bfloat16 compute in float32, float64 in float64; the result has the input's dtype.
"""

from __future__ import annotations

import torch

from qtune.arith.quantize import RANGE_SLACK
from qtune.arith_fast.blocks import block_elements, spans, storage_order
from qtune.arith_fast.buffers import empty_map
from qtune.arith_fast.fake_quantize_grad import learned, masked, straight_through
from qtune.arith_fast.fake_quantize_pass import broadcast, compute_dtype, quantized
from qtune.arith_fast.held import channels_last, held_dtype, offset, quant_dtype_of
from qtune.arith_fast.native.quantizing import native_quantize
from qtune.dtype import QuantDType
from qtune.errors import ArgumentError, NonFiniteError


def fake_quantize(
    x: torch.Tensor,
    scale: torch.Tensor | float,
    qmin: int,
    qmax: int,
    axis: int = -1,
    *,
    saturate: bool = True,
    packed: bool = True,
) -> torch.Tensor:
    """Return ``clamp(floor(x / scale + 0.5), qmin, qmax) * scale`` in the dtype of ``x``.

    The gradient is passed on where the code before clamping lies in ``qmin .. qmax``, else 0; with
    ``saturate`` off it is passed on everywhere. ``packed``: what backward keeps of an element is a
    bit, else a byte. NaN passes, infinities saturate. Any strides, empty tensors too.
    """
    factor = _scale_tensor(x, scale)
    _check(x, factor, axis)
    if torch.is_grad_enabled() and x.requires_grad and saturate:
        return masked(x, factor, (qmin, qmax), axis, packed)
    value = quantized(x.detach(), factor, qmin, qmax, axis, with_mask=False)[0]
    return straight_through(x, value)


def learned_fake_quantize(
    x: torch.Tensor,
    scale: torch.Tensor,
    qmin: int,
    qmax: int,
    axis: int = -1,
    *,
    inside: bool = True,
    factor: float = 1.0,
) -> torch.Tensor:
    """As :func:`fake_quantize`, with a gradient for ``scale`` too, as of a learned step size.

    ``scale``: positive, float [1] or one per element of ``axis``. Its gradient is the sum of
    ``g * code`` over what saturates, and with ``inside`` of ``g * (code - x / scale)`` over the
    rest, times ``factor``. Infinities saturate, NaN adds nothing.
    """
    _check(x, scale, axis)
    return learned(x, scale, (qmin, qmax), axis, factor, inside)


def clip_only(
    x: torch.Tensor, scale: torch.Tensor | float, qmin: int, qmax: int, axis: int = -1
) -> torch.Tensor:
    """Clamp the elements out of range to ``qmin * scale .. qmax * scale``; leave the others."""
    factor = _scale_tensor(x, scale)
    _check(x, factor, axis)
    wide = _compute(x)
    steps = broadcast(factor, wide.dtype, wide.dim(), axis)
    clipped = torch.clamp(wide, qmin * steps, qmax * steps)
    return torch.where(in_range(x, factor, qmin, qmax, axis), x, clipped.to(x.dtype))


def round_only(
    x: torch.Tensor, scale: torch.Tensor | float, qmin: int, qmax: int, axis: int = -1
) -> torch.Tensor:
    """Fake-quantize the elements in range; leave the others. The gradient is 1 everywhere."""
    mask = in_range(x, scale, qmin, qmax, axis)
    rounded = torch.where(mask, fake_quantize(x.detach(), scale, qmin, qmax, axis), x.detach())
    return straight_through(x, rounded)


def in_range(
    x: torch.Tensor, scale: torch.Tensor | float, qmin: int, qmax: int, axis: int = -1
) -> torch.Tensor:
    """Return the bool mask of elements that do not clip, as ``qtune.arith.quantize.in_range``."""
    factor = _scale_tensor(x, scale)
    _check(x, factor, axis)
    wide = x.detach().double()
    steps = broadcast(factor, wide.dtype, wide.dim(), axis) * RANGE_SLACK
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
    return values.mul_(broadcast(_scale_tensor(values, scale), values.dtype, values.dim(), axis))


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


def _codes(x: torch.Tensor, scale: torch.Tensor, axis: int) -> torch.Tensor:
    """``floor(x / scale + 0.5)`` in the compute dtype, a new tensor."""
    wide = _compute(x)
    return torch.div(wide, broadcast(scale, wide.dtype, wide.dim(), axis)).add_(0.5).floor_()


def _compute(x: torch.Tensor) -> torch.Tensor:
    return x.to(compute_dtype(x))


def _scale_tensor(x: torch.Tensor, scale: torch.Tensor | float) -> torch.Tensor:
    if isinstance(scale, torch.Tensor):
        if scale.dtype == torch.float32 and not scale.requires_grad and scale.dim() == 1:
            return scale
        return scale.detach().to(torch.float32).reshape(-1)
    return torch.tensor([scale], dtype=torch.float32, device=x.device)


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
