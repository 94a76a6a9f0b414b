"""repeat_interleave: every element of a dimension several times; keeps the input's scale."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from qtune.ops.kernel import Builder, LowerCall
from qtune.ops.movement.moving import axis_of, int64, is_tensor, no_flops
from qtune.ops.registry import register
from qtune.ops.spec import Bound, FunctionTarget, MarchRule, MethodTarget, OpSpec, Rule, Sample


def _bind(input: Any, repeats: Any = None, dim: Any = None, *, output_size: Any = None) -> Bound:
    if repeats is None or dim is None or is_tensor(repeats):
        raise NotImplementedError("repeat_interleave needs one number of repeats and a dimension")
    return Bound((input,), {"repeats": repeats, "dim": dim})


def _lower(b: Builder, call: LowerCall) -> Any:
    shape = call.input_shapes[0] or ()
    axis = axis_of(int(call.attrs["dim"]), len(shape))
    order = int64(np.repeat(np.arange(shape[axis]), int(call.attrs["repeats"])).tolist())
    return b.add("Gather", [call.operands[0], b.constant(order, "indices")], {"axis": axis})


def _sample(rng: np.random.Generator) -> Sample:
    shape = tuple(int(v) for v in rng.integers(1, 5, 4))
    return Sample((shape,), {"repeats": int(rng.integers(1, 4)), "dim": int(rng.integers(-4, 4))})


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
