"""Masks of attention: which positions are blocked, and what else a float mask adds.

A blocked position gets the weight 0; its score is never replaced by a large negative number, which
would take the whole range of the scores (numerics.md section 3). A float mask is split: what is
at or below ``BLOCKED`` blocks, the rest is added to the scores.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from qtune.ops.spec import DecomposeBuilder

BLOCKED = -1e4
"""A float mask blocks from here on: exp(-1e4) is 0 in every dtype. Models write -inf, -1e9, ..."""

_ZEROS = ("zeros", "zeros_like", "new_zeros", "zeros_")
_REASON = (
    "a float mask is split into a bool mask and an addend in float; pass a bool mask to keep it "
    "out of the quantized region"
)


@dataclass(frozen=True, slots=True)
class Mask:
    """``blocked``: bool, or ``None``; ``addend``: finite floats for the scores, or ``None``.

    ``finite``: the number that blocks is known and finite: a softmax spreads its weight evenly
    over a row without a free position, where it is not a number (or 0) under -inf.
    """

    blocked: Any = None
    addend: Any = None
    finite: bool = False


def only_blocks(mask: torch.Tensor) -> bool:
    """Whether a float mask holds nothing but 0 and values that block."""
    return bool(((mask == 0) | (mask <= BLOCKED)).all())


def split_mask(builder: DecomposeBuilder, mask: Any, part: str, *, true_blocks: bool) -> Mask:
    """The mask of a call. ``true_blocks``: what True means in a bool mask."""
    if mask is None:
        return Mask()
    if builder.dtype(mask) is torch.bool:
        if true_blocks:
            return Mask(mask)
        return Mask(builder.call("logical_not", (mask,), part=f"{part}_blocked"))
    source = _filled_from(builder, mask)
    if source is not None:
        return source
    if builder.is_constant(mask):
        return _split_constant(builder, mask, part)
    blocked = builder.float_call(torch.le, (mask, BLOCKED), part=f"{part}_blocked", reason=_REASON)
    addend = builder.float_call(
        torch.masked_fill, (mask, blocked, 0.0), part=f"{part}_addend", reason=_REASON
    )
    return Mask(blocked, addend)


def _split_constant(builder: DecomposeBuilder, mask: Any, part: str) -> Mask:
    blocked = builder.call("le", (mask, BLOCKED), part=f"{part}_blocked")
    known = builder.known(mask)
    if known is not None and not known.requires_grad and only_blocks(known):
        builder.require(only_blocks, mask, "the mask holds only 0 and values that block")
        return Mask(blocked, finite=bool(known.isfinite().all()))
    addend = builder.call("masked_fill", (mask, blocked, 0.0), part=f"{part}_addend")
    return Mask(blocked, addend)


def _filled_from(builder: DecomposeBuilder, mask: Any) -> Mask | None:
    """The bool mask that ``zeros.masked_fill(bool_mask, -inf)`` was made from, as torch does.

    ``where(bool_mask, -inf, 0)`` is the same.
    """
    made = builder.made_by(mask)
    if made is None or made[0] not in ("masked_fill", "where"):
        return None
    zeros, blocked, number = made[1].tensors
    is_free = False
    if made[0] == "where":
        blocked, number, zeros = made[1].tensors
        is_free = not _is_low(builder, number)
        if is_free:
            number, zeros = zeros, number
    value = _number(builder, number)
    if value > BLOCKED or not _is_zero(builder, zeros):
        return None
    if builder.shape(blocked) != builder.shape(mask):
        return None
    if is_free:
        blocked = builder.call("logical_not", (blocked,), part="mask_blocked")
    return Mask(blocked, finite=value > -math.inf)


def _is_zero(builder: DecomposeBuilder, tensor: Any) -> bool:
    if not builder.is_tensor(tensor):
        return isinstance(tensor, int | float) and tensor == 0
    known = builder.known(tensor)
    if known is not None:
        return not bool(known.any())
    return getattr(getattr(tensor, "target", None), "__name__", "") in _ZEROS


def merged(builder: DecomposeBuilder, masks: list[Any], part: str) -> Any:
    """Bool masks that broadcast, as one."""
    if not masks:
        return None
    result = masks[0]
    for index, mask in enumerate(masks[1:]):
        result = builder.call("logical_or", (result, mask), part=f"{part}_{index}")
    return result


def peeled(builder: DecomposeBuilder, scores: Any) -> tuple[Any, Mask]:
    """What is under the masks of ``scores``, and where they block (``Mask()``: nowhere).

    Models write masks before a softmax as ``scores.masked_fill(mask, -inf)``, as ``torch.where``
    or by adding a constant of 0 and -inf; values at or below ``BLOCKED`` count as -inf.
    """
    found: list[Mask] = []
    while (layer := _peel(builder, scores, len(found))) is not None:
        if builder.shape(layer[0]) != builder.shape(scores):
            break
        scores = layer[0]
        found.append(layer[1])
    blocked = merged(builder, [mask.blocked for mask in found], "masks")
    return scores, Mask(blocked, finite=bool(found) and all(mask.finite for mask in found))


def _peel(builder: DecomposeBuilder, scores: Any, number: int) -> tuple[Any, Mask] | None:
    made = builder.made_by(scores)
    if made is None or made[0] not in ("masked_fill", "where", "add"):
        return None
    tensors = made[1].tensors
    if made[0] == "add":
        return None if made[1].attrs else _peel_sum(builder, tensors, number)
    if made[0] == "masked_fill":
        scores, condition, value = tensors
    else:
        condition, value, scores = tensors
        if not _is_low(builder, value):
            scores, value = value, scores
            if _is_low(builder, value) and builder.is_tensor(scores):
                condition = builder.call("logical_not", (condition,), part=f"mask_{number}")
    if not _is_low(builder, value) or not builder.is_tensor(scores):
        return None
    return scores, Mask(condition, finite=_number(builder, value) > -math.inf)


def _peel_sum(
    builder: DecomposeBuilder, tensors: tuple[Any, ...], number: int
) -> tuple[Any, Mask] | None:
    for scores, mask in (tensors, tensors[::-1]):
        if not builder.is_tensor(scores) or not builder.is_tensor(mask):
            continue
        source = _filled_from(builder, mask)
        if source is not None:
            return scores, source
        known = builder.known(mask)
        if known is None or known.requires_grad or not only_blocks(known) or not known.any():
            continue
        return scores, _split_constant(builder, mask, f"mask_{number}")
    return None


def _is_low(builder: DecomposeBuilder, value: Any) -> bool:
    """Whether a number, or a constant of one element, blocks."""
    return _number(builder, value) <= BLOCKED


def _number(builder: DecomposeBuilder, value: Any) -> float:
    """A number, or the value of a constant of one element; 0 for anything else."""
    if builder.is_tensor(value):
        known = builder.known(value)
        return float(known) if known is not None and known.numel() == 1 else 0.0
    return float(value) if isinstance(value, int | float) else 0.0
