"""x[...]: basic indexing, tensors and lists of indices; keeps the input's scale."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import torch

from qtune.ops.kernel import Attrs, Builder, LowerCall, Value
from qtune.ops.movement.choosing import choose
from qtune.ops.movement.indexing import (
    IndexPlan,
    canonical_index,
    numpy_region,
    places,
    plan_index,
    python_slices,
    refuse_masks,
    torch_index,
    without_masks,
)
from qtune.ops.movement.moving import int64, movement_kernel, no_flops
from qtune.ops.registry import register
from qtune.ops.spec import Bound, FunctionTarget, MethodTarget, OpSpec, Rule, Sample


def _bind(input: Any, index: Any) -> Bound:
    items, tensors = canonical_index(index)
    refuse_masks(tensors)
    return Bound((input, *tensors), {"index": items})


def at_dim(dim: int, item: Any) -> tuple[Any, ...]:
    """``item`` at dimension ``dim`` of a tensor of any rank."""
    if dim >= 0:
        return (slice(None),) * dim + (item,)
    return (Ellipsis, item) + (slice(None),) * (-dim - 1)


def _bind_select(input: Any, dim: Any, index: Any) -> Bound:
    return _bind(input, at_dim(dim, index))


def float_kernel(x: torch.Tensor, *indices: torch.Tensor, index: tuple[Any, ...]) -> torch.Tensor:
    """``x[index]``; ``indices`` are the tensors among the items."""
    return x[torch_index(index, indices)]


def _lower(b: Builder, call: LowerCall) -> Any:
    shape = call.input_shapes[0] or ()
    items, operands = without_masks(call.attrs["index"], call.operands[1:])
    shapes = [s for s in call.input_shapes[1:] if s is not None]
    rank = max(map(len, shapes), default=0) if operands else None
    plan = plan_index(items, shape, rank)
    x: Any = call.operands[0]
    if plan.slices:
        x = emit_slice(b, x, plan)
    if plan.squeeze:
        x = b.add("Squeeze", [x, b.constant(int64(plan.squeeze))])
    if plan.chosen:
        x = choose(b, call, x, plan, operands)
    if plan.unsqueeze:
        x = b.add("Unsqueeze", [x, b.constant(int64(plan.unsqueeze))])
    return x if x is not call.operands[0] else b.add("Identity", [x])


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
    chosen = places(part, x.shape[axis])
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
    return Sample(((size,) * 4,), {"index": index})


register(
    OpSpec(
        name="getitem",
        family="movement",
        rule=Rule.INPUT_SCALE,
        roles=("input", "*indices"),
        targets=(
            FunctionTarget(operator.getitem, _bind),
            FunctionTarget(torch.select, _bind_select),
            MethodTarget("__getitem__", _bind),
            MethodTarget("select", _bind_select),
        ),
        float_kernel=float_kernel,
        lower=_lower,
        kernels=(movement_kernel("Slice", _apply, _reference),),
        flops=no_flops,
        sample=_sample,
        doc="elements by ints, slices, None, ... and tensors or lists of indices",
    )
)
