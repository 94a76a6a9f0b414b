"""Assignment to what a mask or indices choose: ``x[mask] = 0``, ``x[:, [0, 2]] = y``.

A mask chooses between the value and the tensor (Where). Constant indices of one axis choose rows
of the tensor with the value's rows behind it (Concat, Gather), or are a mask if the value is one
number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from qtune.ops.elementwise.binding import is_scalar, operand_value
from qtune.ops.kernel import Builder, LowerCall, Value
from qtune.ops.movement.indexing import constant_data, is_constant, is_mask
from qtune.ops.movement.moving import int64, is_tensor, rank_of


def check_assignable(index: Any, items: Sequence[Any], tensors: Sequence[Any], value: Any) -> None:
    """Raise ``NotImplementedError`` for an index that can't be assigned to."""
    chosen = [item for item in items if isinstance(item, str | tuple)]
    if any(item is None for item in items):
        _refuse(index, "take None out of it and reshape the value")
    if not chosen:
        return
    others = [item for item in items if not isinstance(item, str | tuple)]
    whole = all(item is Ellipsis or item == slice(None) for item in others)
    if len(chosen) > 1 or not whole:
        _refuse(
            index,
            "one mask or one list of indices with whole slices beside it can; else "
            "assign in two steps, or use torch.where",
        )
    for tensor in tensors:
        known = is_constant(tensor) or isinstance(tensor, torch.Tensor)
        if is_mask(tensor):
            one = not (is_tensor(value) or hasattr(value, "shape")) or rank_of(value) == 0
            if not one and not known:
                _refuse(index, "a mask takes one number only as the value; use torch.where")
        elif not known:
            _refuse(index, "its indices are computed; use torch.where with a mask")


def _refuse(index: Any, remedy: str) -> None:
    kinds = index if isinstance(index, tuple) else (index,)
    shown = ", ".join("a tensor" if hasattr(k, "shape") else str(k) for k in kinds)
    raise NotImplementedError(f"[{shown}] can't be assigned to: {remedy}")


def lower_chosen(b: Builder, call: LowerCall) -> Any:
    """Emit the assignment to the one mask or list among ``attrs["index"]``."""
    items, shape = call.attrs["index"], call.input_shapes[0] or ()
    place = next(i for i, item in enumerate(items) if isinstance(item, str | tuple))
    operand = call.operands[2] if isinstance(items[place], str) else None
    data = np.asarray(items[place]) if operand is None else constant_data(operand)
    dims = 1
    if operand is not None and call.input_dtypes[2:] and call.input_dtypes[2] == "bool":
        dims = len(call.input_shapes[2] or ())
        axis = _axis(items, place, len(shape), dims)
        if _is_one(call):
            return _where(b, call, _aligned(b, operand, dims, len(shape) - axis - dims))
        data = None if data is None or dims > 1 else np.flatnonzero(data)
    axis = _axis(items, place, len(shape), dims)
    if data is None or data.ndim > 1:
        raise NotImplementedError(
            f"{call.name}: assignment of a tensor to a mask of {dims} dimensions; use torch.where"
        )
    listed = [int(i) % shape[axis] for i in data.reshape(-1)]
    if not _is_one(call):
        return _replace_rows(b, call, axis, listed)
    mask = np.zeros(shape[axis], dtype=np.bool_)
    mask[listed] = True
    mask = mask.reshape(-1, *[1] * (len(shape) - axis - 1))
    return _where(b, call, b.constant(mask, "mask"))


def _axis(items: Sequence[Any], place: int, rank: int, dims: int) -> int:
    """First axis of the chosen item; the others are whole slices and ``...``."""
    before = items[:place]
    if Ellipsis not in before:
        return place
    return rank - dims - len(items[place + 1 :])


def _is_one(call: LowerCall) -> bool:
    shape = call.input_shapes[1]
    return is_scalar(call.operands[1]) or (shape is not None and math.prod(shape) == 1)


def _aligned(b: Builder, mask: Any, dims: int, behind: int) -> Value:
    """The mask with dimensions of size 1 behind its own."""
    if not behind:
        return mask
    axes = b.constant(int64(range(dims, dims + behind)), "axes")
    return b.add("Unsqueeze", [mask, axes])


def _where(b: Builder, call: LowerCall, mask: Value) -> Any:
    value: Any = operand_value(b, call, 1)
    rank = len(call.input_shapes[1] or ())
    if rank:
        value = b.add("Squeeze", [value, b.constant(int64(range(rank)), "axes")])
    return b.add("Where", [mask, value, call.operands[0]])


def _replace_rows(b: Builder, call: LowerCall, axis: int, listed: Sequence[int]) -> Any:
    """Rows of ``x`` and, where listed, of the value; the last of several wins."""
    shape, own = call.input_shapes[0] or (), call.input_shapes[1] or ()
    region = [*shape[:axis], len(listed), *shape[axis + 1 :]]
    padded = (1,) * (len(shape) - len(own)) + own
    # In ONNX a 1 keeps the input's size, so that a size that does not change stays open.
    target = [1 if size == has else size for size, has in zip(region, padded, strict=True)]
    value = call.operands[1]
    if tuple(region) != own:
        value = b.add("Expand", [value, b.constant(int64(target), "shape")])
    order = list(range(shape[axis]))
    for row, place in enumerate(listed):
        order[place] = shape[axis] + row
    joined = b.add("Concat", [call.operands[0], value], {"axis": axis})
    return b.add("Gather", [joined, b.constant(int64(order), "indices")], {"axis": axis})
