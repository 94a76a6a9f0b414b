"""rot90: two dimensions turned by quarters; flips and a transpose, keeps the input's scale."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from qtune.ops.kernel import Builder, LowerCall
from qtune.ops.movement.flip import emit_flip
from qtune.ops.movement.moving import axis_of, no_flops
from qtune.ops.registry import register
from qtune.ops.spec import Bound, FunctionTarget, MarchRule, MethodTarget, OpSpec, Rule, Sample


def _bind(input: Any, k: int = 1, dims: Any = (0, 1)) -> Bound:
    return Bound((input,), {"k": int(k), "dims": tuple(dims)})


def _lower(b: Builder, call: LowerCall) -> Any:
    rank = len(call.input_shapes[0] or ())
    first, second = (axis_of(int(d), rank) for d in call.attrs["dims"])
    k, x = call.attrs["k"] % 4, call.operands[0]
    order = list(range(rank))
    order[first], order[second] = second, first
    if k in (0, 2):
        return emit_flip(b, x, [first, second] if k else [])
    turned = emit_flip(b, x, [second if k == 1 else first])
    return b.add("Transpose", [turned], {"perm": order})


def _sample(rng: np.random.Generator) -> Sample:
    shape = tuple(int(v) for v in rng.integers(1, 5, 3))
    dims = tuple(int(v) for v in rng.permutation(3)[:2])
    return Sample((shape,), {"k": int(rng.integers(-4, 5)), "dims": dims})


register(
    OpSpec(
        name="rot90",
        family="movement",
        rule=Rule.INPUT_SCALE,
        roles=("input",),
        targets=(FunctionTarget(torch.rot90, _bind), MethodTarget("rot90", _bind)),
        float_kernel=torch.rot90,
        lower=_lower,
        march=(MarchRule(("bayes",)), MarchRule(("nash",), ("qint8",), ("qint8",))),
        flops=no_flops,
        sample=_sample,
        doc="two dimensions turned by quarters",
    )
)
