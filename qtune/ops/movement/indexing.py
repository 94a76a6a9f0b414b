"""Basic indexing ``x[1, :, None, ..., 2:]`` as slice, squeeze, gather and unsqueeze."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import fx

from qtune.ops.kernel import ExampleSize
from qtune.ops.movement.moving import is_tensor

TENSOR = "tensor"
"""Stands in a canonical index for the one tensor, which is an operand of its own."""

OPEN = 2**63 - 1
"""The end of an ONNX Slice that runs to the end of the axis, whatever its size."""


@dataclass(frozen=True, slots=True)
class IndexPlan:
    """What an index does to an input of known shape, in this order.

    ``slices``: (start, end, axis, step) of one ONNX Slice. ``squeeze``: axes of the plain ints.
    ``gather``: the axis, after squeezing, that indices select; ``listed`` holds constant indices.
    ``unsqueeze``: the places of ``None`` in the result.
    """

    slices: list[tuple[int, int, int, int]] = field(default_factory=list)
    squeeze: list[int] = field(default_factory=list)
    gather: int | None = None
    listed: tuple[int, ...] | None = None
    unsqueeze: list[int] = field(default_factory=list)


def canonical_index(index: Any) -> tuple[tuple[Any, ...], Any]:
    """``(items, tensor)`` of what stands between the brackets.

    Items are ints, sizes (fx nodes), slices, ``None``, ``...``, tuples of ints, and
    :data:`TENSOR` for the tensor. Raises ``NotImplementedError`` for masks and several tensors.
    """
    items = tuple(index) if isinstance(index, tuple) else (index,)
    tensors = [item for item in items if _is_operand(item)]
    if len(tensors) > 1:
        raise NotImplementedError(f"an index with {len(tensors)} tensors; use one tensor at a time")
    for tensor in tensors:
        _refuse_mask(tensor)
    return tuple(_canonical_item(item) for item in items), tensors[0] if tensors else None


def _is_operand(item: Any) -> bool:
    """Whether an item is a tensor: of torch, an fx node of one, or a value of an HBIR graph."""
    if item is None or item is Ellipsis or isinstance(item, int | float | str | slice | Sequence):
        return False
    return is_tensor(item) if isinstance(item, fx.Node) else not isinstance(item, range)


def _refuse_mask(tensor: Any) -> None:
    dtype = tensor.meta.get("dtype") if isinstance(tensor, fx.Node) else tensor.dtype
    if str(dtype).removeprefix("torch.").lower() in ("bool", "uint8"):
        raise NotImplementedError(
            "an index by a mask, whose result has a size that depends on data; use torch.where or "
            "masked_fill"
        )


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


def torch_index(items: Sequence[Any], tensor: Any = None) -> tuple[Any, ...]:
    """The canonical index as torch takes it."""

    def plain(item: Any) -> Any:
        if isinstance(item, str):
            return tensor
        return list(item) if isinstance(item, tuple) else item

    return tuple(plain(item) for item in items)


def plan_index(
    items: Sequence[Any], shape: tuple[int, ...], indices_rank: int | None = None
) -> IndexPlan:
    """Resolve a canonical index on an input of ``shape``; ``indices_rank``: of the tensor."""
    plan = IndexPlan()
    gather, axis, place = None, 0, 0
    listed: tuple[int, ...] | None = None
    for item in _without_ellipsis(items, len(shape)):
        if item is None:
            plan.unsqueeze.append(place)
            place += 1
            continue
        if isinstance(item, slice):
            _add_slice(plan, item, axis, shape[axis])
            place += 1
        elif isinstance(item, str | tuple):
            gather = axis - len(plan.squeeze)
            listed = item if isinstance(item, tuple) else None
            place += 1 if listed is not None else int(indices_rank or 0)
        else:
            _add_int(plan, int(item), axis)
        axis += 1
    return IndexPlan(plan.slices, plan.squeeze, gather, listed, plan.unsqueeze)


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


def numpy_region(
    shape: tuple[int, ...], starts: Any, ends: Any, axes: Any = None, steps: Any = None
) -> tuple[slice, ...]:
    """The same as a NumPy index of an array of ``shape``."""
    region = [slice(None)] * len(shape)
    for axis, part in python_slices(len(shape), starts, ends, axes, steps):
        start, stop, step = part.indices(shape[axis])
        region[axis] = slice(start, None if stop < 0 else stop, step)
    return tuple(region)
