"""diagonal: the diagonal of each matrix of two dimensions; keeps the input's scale."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from qtune.ops.kernel import Builder, LowerCall
from qtune.ops.movement.index_select import MARCH
from qtune.ops.movement.moving import axis_of, int64, no_flops
from qtune.ops.movement.reshape import emit_reshape
from qtune.ops.registry import register
from qtune.ops.spec import Bound, FunctionTarget, MethodTarget, OpSpec, Rule, Sample


def _bind(input: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Bound:
    return Bound((input,), {"offset": int(offset), "dim1": int(dim1), "dim2": int(dim2)})


def _bind_linalg(A: Any, *, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Bound:  # noqa: N803
    return _bind(A, offset, dim1, dim2)


def float_kernel(x: torch.Tensor, *, offset: int, dim1: int, dim2: int) -> torch.Tensor:
    """The elements ``x[i, i + offset]`` of ``dim1`` and ``dim2``, as the last dimension."""
    return torch.diagonal(x, offset, dim1, dim2)


def _lower(b: Builder, call: LowerCall) -> Any:
    shape = call.input_shapes[0] or ()
    first, second = (axis_of(call.attrs[key], len(shape)) for key in ("dim1", "dim2"))
    others = [axis for axis in range(len(shape)) if axis not in (first, second)]
    rows, columns = shape[first], shape[second]
    moved = b.add("Transpose", [call.operands[0]], {"perm": [*others, first, second]})
    flat = emit_reshape(b, moved, [0] * len(others) + [rows * columns], "flat")
    places = np.diagonal(np.arange(rows * columns).reshape(rows, columns), call.attrs["offset"])
    indices = b.constant(int64(places.tolist()), "indices")
    return b.add("Gather", [flat, indices], {"axis": len(others)})


def _sample(rng: np.random.Generator) -> Sample:
    shape = tuple(int(v) for v in rng.integers(3, 6, 3))
    dim1, dim2 = (int(v) for v in rng.permutation(3)[:2])
    return Sample((shape,), {"offset": int(rng.integers(-2, 3)), "dim1": dim1, "dim2": dim2})


register(
    OpSpec(
        name="diagonal",
        family="movement",
        rule=Rule.INPUT_SCALE,
        roles=("input",),
        targets=(
            FunctionTarget(torch.diagonal, _bind),
            FunctionTarget(torch.linalg.diagonal, _bind_linalg),
            MethodTarget("diagonal", _bind),
        ),
        float_kernel=float_kernel,
        lower=_lower,
        march=MARCH,
        flops=no_flops,
        sample=_sample,
        doc="the diagonal of each matrix of two dimensions",
    )
)
