"""unbind: the slices of a tensor along a dimension; each keeps the input's scale."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from qtune.ops.kernel import Builder, LowerCall
from qtune.ops.movement.moving import axis_of, int64, no_flops
from qtune.ops.movement.split import emit_split
from qtune.ops.registry import register
from qtune.ops.spec import Bound, FunctionTarget, MethodTarget, OpSpec, Rule, Sample


def _bind(input: Any, dim: Any = 0) -> Bound:
    return Bound((input,), {"dim": dim})


def float_kernel(x: torch.Tensor, *, dim: int) -> tuple[torch.Tensor, ...]:
    """The slices of ``x`` along ``dim``, without that dimension."""
    return tuple(torch.unbind(x, dim))


def _lower(b: Builder, call: LowerCall) -> Any:
    shape = call.input_shapes[0] or (1,)
    axis = axis_of(int(call.attrs["dim"]), len(shape))
    axes = b.constant(int64([axis]), "axes")
    pieces = emit_split(b, call.operands[0], [1] * shape[axis], axis)
    return tuple(b.add("Squeeze", [piece, axes]) for piece in pieces)


def _sample(rng: np.random.Generator) -> Sample:
    shape = tuple(int(v) for v in rng.integers(1, 5, 3))
    return Sample((shape,), {"dim": int(rng.integers(-3, 3))})


register(
    OpSpec(
        name="unbind",
        family="movement",
        rule=Rule.INPUT_SCALE,
        roles=("input",),
        targets=(FunctionTarget(torch.unbind, _bind), MethodTarget("unbind", _bind)),
        float_kernel=float_kernel,
        lower=_lower,
        flops=no_flops,
        sample=_sample,
        doc="the slices of a tensor along a dimension",
    )
)
