"""repeat_interleave: every element of a dimension several times; keeps the input's scale."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import torch

from qtune.ops.kernel import Builder, LowerCall
from qtune.ops.movement.moving import axis_of, int64, is_tensor, no_flops
from qtune.ops.movement.reshape import emit_reshape
from qtune.ops.registry import register
from qtune.ops.spec import Bound, FunctionTarget, MarchRule, MethodTarget, OpSpec, Rule, Sample


def _bind(input: Any, repeats: Any = None, dim: Any = None, *, output_size: Any = None) -> Bound:
    if repeats is None or is_tensor(repeats):
        raise NotImplementedError("repeat_interleave needs one number of repeats")
    return Bound((input,), {"repeats": repeats, "dim": dim})


def _lower(b: Builder, call: LowerCall) -> Any:
    shape = call.input_shapes[0] or ()
    x, dim = call.operands[0], call.attrs["dim"]
    axis = 0 if dim is None else axis_of(int(dim), len(shape))
    if dim is None:
        x, shape = emit_reshape(b, x, [-1], "flat"), (prod(shape),)
    order = int64(np.repeat(np.arange(shape[axis]), int(call.attrs["repeats"])).tolist())
    return b.add("Gather", [x, b.constant(order, "indices")], {"axis": axis})


def _sample(rng: np.random.Generator) -> Sample:
    shape = tuple(int(v) for v in rng.integers(1, 5, 4))
    dim = None if not rng.integers(4) else int(rng.integers(-4, 4))
    return Sample((shape,), {"repeats": int(rng.integers(1, 4)), "dim": dim})


register(
    OpSpec(
        name="repeat_interleave",
        family="movement",
        rule=Rule.INPUT_SCALE,
        roles=("input",),
        targets=(
            FunctionTarget(torch.repeat_interleave, _bind),
            MethodTarget("repeat_interleave", _bind),
        ),
        float_kernel=torch.repeat_interleave,
        lower=_lower,
        march=(MarchRule(("bayes", "nash")),),
        flops=no_flops,
        sample=_sample,
        doc="every element of a dimension several times",
    )
)
