"""x[...]: basic indexing, or one tensor of indices; keeps the input's scale."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from qtune.ops.kernel import Attrs, Builder, LowerCall, Value
from qtune.ops.movement.indexing import (
    IndexPlan,
    canonical_index,
    numpy_region,
    plan_index,
    python_slices,
    torch_index,
)
from qtune.ops.movement.moving import int64, movement_kernel, no_flops
from qtune.ops.registry import register
from qtune.ops.spec import Bound, FunctionTarget, MethodTarget, OpSpec, Rule, Sample


def _bind(input: Any, index: Any) -> Bound:
    items, tensor = canonical_index(index)
    return Bound((input, tensor), {"index": items})


def _at(dim: int, item: Any) -> tuple[Any, ...]:
    """``item`` at dimension ``dim`` of a tensor of any rank."""
    if dim >= 0:
        return (slice(None),) * dim + (item,)
    return (Ellipsis, item) + (slice(None),) * (-dim - 1)


def _bind_select(input: Any, dim: Any, index: Any) -> Bound:
    return _bind(input, _at(dim, index))


def _bind_narrow(input: Any, dim: Any, start: Any, length: Any) -> Bound:
    if not isinstance(start, int) or not isinstance(length, int):
        raise NotImplementedError("narrow with a start or length that is computed; use x[a:b]")
    stop = start + length
    return _bind(input, _at(dim, slice(start, stop if stop or start >= 0 else None)))


def float_kernel(x: torch.Tensor, indices: Any = None, *, index: tuple[Any, ...]) -> torch.Tensor:
    """``x[index]``; ``indices`` is the tensor among the items."""
    return x[torch_index(index, indices)]


def _lower(b: Builder, call: LowerCall) -> Any:
    x, indices = call.operands[0], call.operands[1]
    rank = None if indices is None else len(call.input_shapes[1] or ())
    plan = plan_index(call.attrs["index"], call.input_shapes[0] or (), rank)
    steps: list[Callable[[Any], Any]] = []
    if plan.slices:
        steps.append(lambda value: emit_slice(b, value, plan))
    if plan.squeeze:
        steps.append(lambda value: b.add("Squeeze", [value, b.constant(int64(plan.squeeze))]))
    if plan.gather is not None:
        listed = indices if plan.listed is None else b.constant(int64(plan.listed), "indices")
        steps.append(lambda value: b.add("Gather", [value, listed], {"axis": plan.gather}))
    if plan.unsqueeze:
        steps.append(lambda value: b.add("Unsqueeze", [value, b.constant(int64(plan.unsqueeze))]))
    for step in steps or [lambda value: b.add("Identity", [value])]:
        x = step(x)
    return x


def slice_inputs(b: Builder, plan: IndexPlan) -> list[Value]:
    """starts, ends, axes and steps of a plan as initializers."""
    names = ("starts", "ends", "axes", "steps")
    columns = zip(*plan.slices, strict=True) if plan.slices else [()] * len(names)
    return [b.constant(int64(c), name) for c, name in zip(columns, names, strict=True)]


def emit_slice(b: Builder, value: Value, plan: IndexPlan) -> Value:
    """The Slice node of a plan."""
    return b.add("Slice", [value, *slice_inputs(b, plan)])


def _apply(attrs: Attrs, x: torch.Tensor, *region: Any) -> torch.Tensor:
    for axis, part in python_slices(x.dim(), *region):
        x = slice_axis(x, axis, part)
    return x


def slice_axis(x: torch.Tensor, axis: int, part: slice) -> torch.Tensor:
    """``x`` sliced along one axis; unlike in torch the step may be negative."""
    if part.step > 0:
        return x[(slice(None),) * axis + (part,)]
    chosen = range(*part.indices(x.shape[axis]))
    if len(chosen) == x.shape[axis]:
        return x.flip(axis)
    return x.index_select(axis, torch.tensor(list(chosen), dtype=torch.int64, device=x.device))


def _reference(attrs: Attrs, x: np.ndarray[Any, Any], *region: Any) -> np.ndarray[Any, Any]:
    return x[numpy_region(x.shape, *region)]


def random_index(rng: np.random.Generator, size: int, rank: int) -> tuple[Any, ...]:
    """A valid basic index without ``None`` for a tensor of ``rank`` dimensions of ``size``."""
    items: list[Any] = []
    for _ in range(int(rng.integers(1, rank + 1))):
        start, stop = int(rng.integers(-size, size)), int(rng.integers(1, size + 1))
        items.append([start, slice(None), slice(0, stop, 2), slice(start, None)][rng.integers(4)])
    return (Ellipsis, *items) if len(items) < rank and rng.integers(2) else tuple(items)


def _sample(rng: np.random.Generator) -> Sample:
    size = int(rng.integers(2, 6))
    index: tuple[Any, ...] = (None, slice(None), (1, 0, -1), ..., None)
    if rng.integers(3):
        index = random_index(rng, size, 4)
    return Sample(((size,) * 4, None), {"index": index})


register(
    OpSpec(
        name="getitem",
        family="movement",
        rule=Rule.INPUT_SCALE,
        roles=("input", "indices"),
        targets=(
            FunctionTarget(operator.getitem, _bind),
            FunctionTarget(torch.select, _bind_select),
            FunctionTarget(torch.narrow, _bind_narrow),
            MethodTarget("__getitem__", _bind),
            MethodTarget("select", _bind_select),
            MethodTarget("narrow", _bind_narrow),
        ),
        float_kernel=float_kernel,
        lower=_lower,
        kernels=(movement_kernel("Slice", _apply, _reference),),
        flops=no_flops,
        sample=_sample,
        doc="elements by ints, slices, None, ... or one tensor of indices",
    )
)
