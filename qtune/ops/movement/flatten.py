"""flatten: neighbouring dimensions become one; keeps the input's scale."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import torch
from torch import nn

from qtune.ops.kernel import Builder, LowerCall
from qtune.ops.movement.moving import axis_of, no_flops
from qtune.ops.movement.reshape import emit_reshape
from qtune.ops.registry import register
from qtune.ops.spec import Bound, FunctionTarget, MethodTarget, ModuleTarget, OpSpec, Rule, Sample


def _bind(input: Any, start_dim: Any = 0, end_dim: Any = -1) -> Bound:
    return Bound((input,), {"start_dim": start_dim, "end_dim": end_dim})


def _bind_module(module: nn.Flatten, input: Any) -> Bound:
    return _bind(input, module.start_dim, module.end_dim)


def _lower(b: Builder, call: LowerCall) -> Any:
    shape = call.input_shapes[0] or (1,)
    start, end = (axis_of(call.attrs[key], len(shape)) for key in ("start_dim", "end_dim"))
    joined = prod(shape[start : end + 1]) if start else -1
    if end == len(shape) - 1:
        joined = -1
    return emit_reshape(b, call.operands[0], [0] * start + [joined, *shape[end + 1 :]])


def _sample(rng: np.random.Generator) -> Sample:
    shape = tuple(int(v) for v in rng.integers(1, 5, 4))
    start = int(rng.integers(0, 4))
    return Sample((shape,), {"start_dim": start, "end_dim": int(rng.integers(start, 4))})


register(
    OpSpec(
        name="flatten",
        family="movement",
        rule=Rule.INPUT_SCALE,
        roles=("input",),
        targets=(
            ModuleTarget(nn.Flatten, _bind_module),
            FunctionTarget(torch.flatten, _bind),
            MethodTarget("flatten", _bind),
        ),
        float_kernel=torch.flatten,
        lower=_lower,
        flops=no_flops,
        sample=_sample,
        doc="neighbouring dimensions joined to one",
    )
)
