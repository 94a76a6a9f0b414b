"""unsqueeze: a dimension of size 1 put in; keeps the input's scale."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from qtune.ops.kernel import Attrs, Builder, LowerCall
from qtune.ops.movement.moving import axis_of, int64, movement_kernel, no_flops
from qtune.ops.registry import register
from qtune.ops.spec import Bound, FunctionTarget, MethodTarget, OpSpec, Rule, Sample


def _bind(input: Any, dim: Any) -> Bound:
    return Bound((input,), {"dim": dim})


def _lower(b: Builder, call: LowerCall) -> Any:
    axis = axis_of(int(call.attrs["dim"]), len(call.input_shapes[0] or ()) + 1)
    return b.add("Unsqueeze", [call.operands[0], b.constant(int64([axis]), "axes")])


def _apply(attrs: Attrs, x: torch.Tensor, axes: list[int]) -> torch.Tensor:
    for axis in _sorted(axes, x.dim()):
        x = x.unsqueeze(axis)
    return x


def _reference(attrs: Attrs, x: np.ndarray[Any, Any], axes: Any) -> np.ndarray[Any, Any]:
    return np.expand_dims(x, tuple(_sorted(axes, x.ndim)))


def _sorted(axes: Any, rank: int) -> list[int]:
    return sorted(axis_of(int(axis), rank + len(axes)) for axis in axes)


def _sample(rng: np.random.Generator) -> Sample:
    shape = tuple(int(v) for v in rng.integers(1, 5, 3))
    return Sample((shape,), {"dim": int(rng.integers(-4, 4))})


register(
    OpSpec(
        name="unsqueeze",
        family="movement",
        rule=Rule.INPUT_SCALE,
        roles=("input",),
        targets=(
            FunctionTarget(torch.unsqueeze, _bind),
            MethodTarget("unsqueeze", _bind),
            MethodTarget("unsqueeze_", _bind),
        ),
        float_kernel=torch.unsqueeze,
        lower=_lower,
        kernels=(movement_kernel("Unsqueeze", _apply, _reference),),
        flops=no_flops,
        sample=_sample,
        doc="a dimension of size 1 put in",
    )
)
