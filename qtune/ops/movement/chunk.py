"""chunk: one tensor cut into a number of pieces; each keeps the input's scale."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from qtune.ops.kernel import Builder, LowerCall
from qtune.ops.movement.moving import axis_of, no_flops
from qtune.ops.movement.split import emit_split, equal_parts
from qtune.ops.registry import register
from qtune.ops.spec import Bound, FunctionTarget, MethodTarget, OpSpec, Rule, Sample


def _bind(input: Any, chunks: Any, dim: Any = 0) -> Bound:
    return Bound((input,), {"chunks": chunks, "dim": dim})


def float_kernel(x: torch.Tensor, *, chunks: int, dim: int) -> tuple[torch.Tensor, ...]:
    """At most ``chunks`` pieces along ``dim``."""
    return tuple(torch.chunk(x, chunks, dim))


def _lower(b: Builder, call: LowerCall) -> Any:
    shape = call.input_shapes[0] or (1,)
    axis = axis_of(int(call.attrs["dim"]), len(shape))
    part = -(-shape[axis] // int(call.attrs["chunks"]))
    return emit_split(b, call.operands[0], equal_parts(shape[axis], part), axis)


def _sample(rng: np.random.Generator) -> Sample:
    shape = tuple(int(v) for v in rng.integers(1, 8, 4))
    attrs = {"chunks": int(rng.integers(1, 5)), "dim": int(rng.integers(-4, 4))}
    return Sample((shape,), attrs)


register(
    OpSpec(
        name="chunk",
        family="movement",
        rule=Rule.INPUT_SCALE,
        roles=("input",),
        targets=(
            FunctionTarget(torch.chunk, _bind),
            FunctionTarget(torch.unsafe_chunk, _bind),
            MethodTarget("chunk", _bind),
            MethodTarget("unsafe_chunk", _bind),
        ),
        float_kernel=float_kernel,
        lower=_lower,
        flops=no_flops,
        sample=_sample,
        doc="a tensor cut into a number of pieces",
    )
)
