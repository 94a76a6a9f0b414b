"""Tensors and lists of indices in ``x[...]`` as Gather along one axis.

Several of them are one index into the axes joined: ``x[:, i, j]`` of sizes h, w is the element
``i * w + j`` of h * w.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from qtune.ops.kernel import Builder, LowerCall, Value
from qtune.ops.movement.indexing import Chosen, IndexPlan, constant_data
from qtune.ops.movement.moving import int64
from qtune.ops.movement.reshape import emit_reshape
from qtune.ops.quant.astype import emit_astype


def choose(b: Builder, call: LowerCall, x: Value, plan: IndexPlan, operands: Sequence[Any]) -> Any:
    """Emit the choice of ``plan.chosen`` on ``x``, which is sliced and squeezed already."""
    if len(plan.chosen) == 1:
        (only,) = plan.chosen
        indices = _gather_index(b, only, operands)
        return b.add("Gather", [x, indices], {"axis": only.axis})
    if plan.apart and plan.unsqueeze:
        raise NotImplementedError(
            f"{call.name}: an index with several tensors, a slice between them and None; index "
            "in two steps"
        )
    shape = _kept_shape(call, plan)
    axes = [item.axis for item in plan.chosen]
    first = axes[0]
    if plan.apart:
        rest = [axis for axis in range(len(shape)) if axis not in axes]
        x, first = b.add("Transpose", [x], {"perm": [*axes, *rest]}), 0
        shape = [shape[axis] for axis in (*axes, *rest)]
    sizes = shape[first : first + len(axes)]
    joined = [0] * first + [math.prod(sizes)] + shape[first + len(axes) :]
    x = emit_reshape(b, x, joined, "joined")
    return b.add("Gather", [x, _linear(b, call, plan, sizes, operands)], {"axis": first})


def _gather_index(b: Builder, item: Chosen, operands: Sequence[Any]) -> Value:
    if item.listed is not None:
        return b.constant(int64(item.listed), "indices")
    return operands[item.operand]


def _kept_shape(call: LowerCall, plan: IndexPlan) -> list[int]:
    """The example's shape after slicing and squeezing."""
    sizes = list(call.input_shapes[0] or ())
    for start, end, axis, step in plan.slices:
        sizes[axis] = len(range(*slice(start, end, step).indices(sizes[axis])))
    return [size for axis, size in enumerate(sizes) if axis not in plan.squeeze]


def _linear(
    b: Builder, call: LowerCall, plan: IndexPlan, sizes: Sequence[int], operands: Sequence[Any]
) -> Value:
    """The index into the joined axes; a negative index counts from the end of its own axis."""
    strides = [math.prod(sizes[place + 1 :]) for place in range(len(sizes))]
    constant: Any = np.int64(0)
    total: Value | None = None
    for item, size, stride in zip(plan.chosen, sizes, strides, strict=True):
        data = item.listed if item.listed is not None else constant_data(operands[item.operand])
        if data is not None:
            constant = constant + np.asarray(data, dtype=np.int64) % size * stride
            continue
        part = b.add("Mod", [_as_int64(b, call, operands[item.operand]), _number(b, size)])
        part = b.add("Mul", [part, _number(b, stride)]) if stride != 1 else part
        total = part if total is None else b.add("Add", [total, part])
    if total is None:
        return b.constant(np.asarray(constant), "indices")
    return b.add("Add", [total, b.constant(np.asarray(constant))]) if np.any(constant) else total


def _as_int64(b: Builder, call: LowerCall, value: Value) -> Value:
    place = next(i for i, operand in enumerate(call.operands) if operand is value)
    dtypes = call.input_dtypes
    return value if not dtypes or dtypes[place] == "int64" else emit_astype(b, value, torch.int64)


def _number(b: Builder, number: int) -> Value:
    return b.constant(np.array(number, dtype=np.int64))
