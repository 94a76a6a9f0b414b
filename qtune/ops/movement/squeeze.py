"""squeeze: dimensions of size 1 left out; keeps the input's scale."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from qtune.ops.kernel import Attrs, Builder, LowerCall
from qtune.ops.movement.moving import axis_of, int64, movement_kernel, no_flops
from qtune.ops.registry import register
from qtune.ops.spec import Bound, FunctionTarget, MethodTarget, OpSpec, Rule, Sample


def _bind(input: Any, dim: Any = None) -> Bound:
    return Bound((input,), {"dim": tuple(dim) if isinstance(dim, Sequence) else dim})


def float_kernel(x: torch.Tensor, *, dim: int | tuple[int, ...] | None = None) -> torch.Tensor:
    """``x`` without the dimensions ``dim`` as far as their size is 1; ``None`` means all."""
    return x.squeeze() if dim is None else x.squeeze(dim)


def _lower(b: Builder, call: LowerCall) -> Any:
    shape, dim = call.input_shapes[0] or (), call.attrs["dim"]
    wanted = range(len(shape)) if dim is None else [dim] if isinstance(dim, int) else dim
    axes = sorted({axis_of(int(d), len(shape)) for d in wanted})
    axes = [axis for axis in axes if shape[axis] == 1]
    if not axes:
        return b.add("Identity", [call.operands[0]])
    return b.add("Squeeze", [call.operands[0], b.constant(int64(axes), "axes")])


def _axes(x: Any, axes: Any) -> tuple[int, ...]:
    if axes is None:
        return tuple(i for i, size in enumerate(x.shape) if size == 1)
    return tuple(int(axis) for axis in axes)


def _apply(attrs: Attrs, x: torch.Tensor, axes: Any = None) -> torch.Tensor:
    return x.squeeze(_axes(x, axes))


def _reference(attrs: Attrs, x: np.ndarray[Any, Any], axes: Any = None) -> np.ndarray[Any, Any]:
    return np.squeeze(x, _axes(x, axes))


def _sample(rng: np.random.Generator) -> Sample:
    shape = (int(rng.integers(2, 4)), *(int(v) for v in rng.integers(1, 3, 3)))
    dim = [None, int(rng.integers(-4, 4)), (1, -1)][int(rng.integers(3))]
    return Sample((shape,), {"dim": dim})


register(
    OpSpec(
        name="squeeze",
        family="movement",
        rule=Rule.INPUT_SCALE,
        roles=("input",),
        targets=(
            FunctionTarget(torch.squeeze, _bind),
            MethodTarget("squeeze", _bind),
            MethodTarget("squeeze_", _bind),
        ),
        float_kernel=float_kernel,
        lower=_lower,
        kernels=(movement_kernel("Squeeze", _apply, _reference),),
        flops=no_flops,
        sample=_sample,
        doc="dimensions of size 1 left out",
    )
)
