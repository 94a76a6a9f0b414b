"""Basic indexing ``x[1, :, None, ..., 2:]`` as slice, squeeze, gather and unsqueeze."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import fx

from qtune.ops.kernel import ExampleSize
from qtune.ops.movement.moving import is_tensor

TENSOR = "tensor"
"""Stands in a canonical index for a tensor, which is an operand of its own."""

OPEN = 2**63 - 1
"""The end of an ONNX Slice that runs to the end of the axis, whatever its size."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """One axis, counted after squeezing, that indices select: constant ones, or an operand's."""

    axis: int
    listed: tuple[int, ...] | None
    operand: int = -1


@dataclass(frozen=True, slots=True)
class IndexPlan:
    """What an index does to an input of known shape, in this order.

    ``slices``: (start, end, axis, step) of one ONNX Slice. ``squeeze``: axes of the plain ints.
    ``chosen``: what tensors and lists of indices select. ``unsqueeze``: the places of ``None`` in
    the result. ``apart``: a slice or ``None`` stands between two of the chosen axes.
    """

    slices: list[tuple[int, int, int, int]] = field(default_factory=list)
    squeeze: list[int] = field(default_factory=list)
    chosen: list[Chosen] = field(default_factory=list)
    unsqueeze: list[int] = field(default_factory=list)
    apart: bool = False


def canonical_index(index: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """``(items, tensors)`` of what stands between the brackets.

    Items are ints, sizes (fx nodes), slices, ``None``, ``...``, tuples of ints, and
    :data:`TENSOR` for each tensor. Raises ``NotImplementedError`` for what no item can be.
    """
    items = tuple(index) if isinstance(index, tuple) else (index,)
    tensors = tuple(item for item in items if _is_operand(item))
    return tuple(_canonical_item(item) for item in items), tensors


def refuse_masks(tensors: Sequence[Any]) -> None:
    """Raise for a mask that is no constant: how many elements it chooses depends on data."""
    for tensor in tensors:
        if is_mask(tensor) and not is_constant(tensor):
            raise NotImplementedError(
                "an index by a mask, whose result has a size that depends on data; use torch.where "
                "or masked_fill"
            )


def is_mask(tensor: Any) -> bool:
    """Whether a tensor of indices is a mask: of torch, an fx node, a value or constant of HBIR."""
    dtype = tensor.meta.get("dtype") if isinstance(tensor, fx.Node) else tensor.dtype
    return str(dtype).removeprefix("torch.").lower() in ("bool", "uint8")


def is_constant(tensor: Any) -> bool:
    """Whether a tensor of indices is a buffer, a parameter or a constant of the model."""
    if isinstance(tensor, fx.Node):
        return tensor.op == "get_attr"
    return not isinstance(tensor, torch.Tensor) and constant_data(tensor) is not None


def constant_data(value: Any) -> np.ndarray[Any, Any] | None:
    """The array that a constant of the lowering or an initializer of HBIR holds, else ``None``."""
    data = getattr(value, "data", None)
    if isinstance(data, torch.Tensor):
        return np.asarray(data.cpu().numpy())
    held = getattr(value, "const_value", None)
    return None if held is None else np.asarray(held.numpy())


def _is_operand(item: Any) -> bool:
    """Whether an item is a tensor: of torch, an fx node of one, or a value of an HBIR graph."""
    if item is None or item is Ellipsis or isinstance(item, int | float | str | slice | Sequence):
        return False
    return is_tensor(item) if isinstance(item, fx.Node) else not isinstance(item, range)


def _canonical_item(item: Any) -> Any:
    if _is_operand(item):
        return TENSOR
    if isinstance(item, list | range):
        return _listed(list(item))
    if isinstance(item, bool | float | str):
        raise NotImplementedError(f"an index of {item!r} (type={type(item).__name__})")
    return item


def _listed(items: list[Any]) -> tuple[int, ...]:
    if not all(isinstance(i, int) and not isinstance(i, bool) for i in items):
        raise NotImplementedError(f"an index list of other things than ints: {items!r}")
    return tuple(items)


def torch_index(items: Sequence[Any], tensors: Sequence[Any] = ()) -> tuple[Any, ...]:
    """The canonical index as torch takes it."""
    given = iter(tensors)

    def plain(item: Any) -> Any:
        if isinstance(item, str):
            return next(given)
        return list(item) if isinstance(item, tuple) else item

    return tuple(plain(item) for item in items)


def without_masks(items: Sequence[Any], operands: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """The index with constant masks as the lists of indices that they choose.

    ``operands``: the values of the tensors. Returns the items, and those operands that stay.
    """
    result: list[Any] = []
    left: list[Any] = []
    given = iter(operands)
    for item in items:
        operand = next(given) if isinstance(item, str) else None
        data = None if operand is None else constant_data(operand)
        if data is not None and data.dtype == np.bool_:
            result += [tuple(int(i) for i in places) for places in np.nonzero(data)]
            continue
        result.append(item)
        left += [] if operand is None else [operand]
    return result, left


def plan_index(
    items: Sequence[Any], shape: tuple[int, ...], indices_rank: int | None = None
) -> IndexPlan:
    """Resolve a canonical index on an input of ``shape``.

    ``indices_rank``: of the tensors of indices, broadcast together.
    """
    plan = IndexPlan()
    axis, place, operand = 0, 0, 0
    runs: list[int] = []
    for number, item in enumerate(_without_ellipsis(items, len(shape))):
        if item is None:
            plan.unsqueeze.append(place)
            place += 1
            continue
        if isinstance(item, slice):
            _add_slice(plan, item, axis, shape[axis])
            place += 1
        elif isinstance(item, str | tuple):
            listed = item if isinstance(item, tuple) else None
            place += 0 if plan.chosen else 1 if indices_rank is None else indices_rank
            plan.chosen.append(Chosen(axis - len(plan.squeeze), listed, operand))
            operand += listed is None
            runs.append(number - len(plan.squeeze))
        else:
            _add_int(plan, int(item), axis)
        axis += 1
    apart = any(b - a != 1 for a, b in pairwise(runs))
    return replace(plan, apart=apart)


def _without_ellipsis(items: Sequence[Any], rank: int) -> Iterator[Any]:
    used = sum(item is not None and item is not Ellipsis for item in items)
    missing = rank - used
    seen = False
    for item in items:
        if item is Ellipsis:
            yield from [slice(None)] * missing
            seen = True
        else:
            yield item
    if not seen:
        yield from [slice(None)] * missing


def _add_slice(plan: IndexPlan, item: slice, axis: int, size: int) -> None:
    to_end = item.stop is None or (isinstance(item.stop, ExampleSize) and item.stop >= size)
    start, step = int(item.start or 0), int(item.step or 1)
    stop = OPEN if to_end else int(item.stop)
    if (start, stop, step) != (0, OPEN, 1):
        plan.slices.append((start, stop, axis, step))


def _add_int(plan: IndexPlan, item: int, axis: int) -> None:
    plan.slices.append((item, OPEN if item == -1 else item + 1, axis, 1))
    plan.squeeze.append(axis)


def python_slices(
    rank: int, starts: Any, ends: Any, axes: Any = None, steps: Any = None
) -> list[tuple[int, slice]]:
    """The inputs of an ONNX Slice as (axis, slice); missing axes and steps take their defaults."""
    axes = range(len(starts)) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    return [
        (int(axis) % rank, slice(int(start), int(end), int(step)))
        for start, end, axis, step in zip(starts, ends, axes, steps, strict=True)
    ]


def places(part: slice, size: int) -> range:
    """The places that one axis of an ONNX Slice takes.

    Unlike in Python, backwards from before the first element takes the first.
    """
    start, stop, step = part.indices(size)
    return range(0 if step < 0 <= size - 1 and start < 0 else start, stop, step)


def numpy_region(
    shape: tuple[int, ...], starts: Any, ends: Any, axes: Any = None, steps: Any = None
) -> tuple[slice, ...]:
    """The same as a NumPy index of an array of ``shape``."""
    region = [slice(None)] * len(shape)
    for axis, part in python_slices(len(shape), starts, ends, axes, steps):
        chosen = places(part, shape[axis])
        stop = None if chosen.stop < 0 else chosen.stop
        region[axis] = slice(chosen.start, stop, chosen.step)
    return tuple(region)
