"""take: elements of the flattened tensor by index; keeps the input's scale."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import torch

from qtune.ops.kernel import Builder, LowerCall
from qtune.ops.movement.index_select import MARCH
from qtune.ops.movement.moving import no_flops
from qtune.ops.movement.reshape import emit_reshape
from qtune.ops.registry import register
from qtune.ops.spec import Bound, FunctionTarget, MethodTarget, OpSpec, Rule, Sample


def _bind(input: Any, index: Any) -> Bound:
    return Bound((input, index))


def float_kernel(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """``x.flatten()[index]``; ``index``: int64 of any shape."""
    return torch.take(x, index)


def _lower(b: Builder, call: LowerCall) -> Any:
    flat = emit_reshape(b, call.operands[0], [-1], "flat")
    return b.add("Gather", [flat, call.operands[1]], {"axis": 0})


def _sample(rng: np.random.Generator) -> Sample:
    shape = tuple(int(v) for v in rng.integers(1, 5, 3))
    chosen = tuple(int(v) for v in rng.integers(1, 5, 2))
    return Sample((shape, chosen), indices={1: prod(shape)})


register(
    OpSpec(
        name="take",
        family="movement",
        rule=Rule.INPUT_SCALE,
        roles=("input", "index"),
        targets=(FunctionTarget(torch.take, _bind), MethodTarget("take", _bind)),
        float_kernel=float_kernel,
        lower=_lower,
        march=MARCH,
        flops=no_flops,
        sample=_sample,
        doc="elements of the flattened tensor by index",
    )
)
