"""stack: tensors along a new dimension; every input is rescaled to the result's own scale."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from qtune.ops.kernel import Builder, LowerCall
from qtune.ops.movement.cat import MARCH, bind_sequence, emit_concat
from qtune.ops.movement.moving import axis_of, int64, no_flops
from qtune.ops.registry import register
from qtune.ops.spec import Bound, FunctionTarget, OpSpec, Rule, Sample


def _bind(tensors: Any, dim: Any = 0) -> Bound:
    return bind_sequence(tensors, dim, "stack")


def float_kernel(*tensors: torch.Tensor, dim: int) -> torch.Tensor:
    """``tensors`` along the new dimension ``dim``."""
    return torch.stack(tensors, dim)


def _lower(b: Builder, call: LowerCall) -> Any:
    axis = axis_of(int(call.attrs["dim"]), len(call.input_shapes[0] or ()) + 1)
    axes = b.constant(int64([axis]), "axes")
    return emit_concat(b, [b.add("Unsqueeze", [x, axes]) for x in call.operands], axis)


def _sample(rng: np.random.Generator) -> Sample:
    shape = tuple(int(v) for v in rng.integers(1, 5, 3))
    return Sample((shape,) * int(rng.integers(1, 4)), {"dim": int(rng.integers(-4, 4))})


register(
    OpSpec(
        name="stack",
        family="movement",
        rule=Rule.OWN_SCALE,
        roles=("*tensors",),
        targets=(FunctionTarget(torch.stack, _bind),),
        float_kernel=float_kernel,
        lower=_lower,
        march=MARCH,
        flops=no_flops,
        sample=_sample,
        doc="tensors along a new dimension",
    )
)
