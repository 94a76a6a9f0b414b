"""expand_as: dimensions of size 1 repeated to the shape of another tensor; keeps the scale."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from qtune.ops.kernel import Builder, LowerCall
from qtune.ops.movement.expand import emit_expand
from qtune.ops.movement.moving import no_flops
from qtune.ops.registry import register
from qtune.ops.spec import Bound, MarchRule, MethodTarget, OpSpec, Rule, Sample


def _bind(input: Any, other: Any) -> Bound:
    return Bound((input, other))


def float_kernel(x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """``x`` broadcast to the shape of ``other``, whose values don't matter."""
    return x.expand(other.shape)


def _lower(b: Builder, call: LowerCall) -> Any:
    return emit_expand(b, call, list(call.input_shapes[1] or ()))


def _sample(rng: np.random.Generator) -> Sample:
    shape = tuple(int(v) for v in rng.integers(1, 3, 3))
    wider = [int(rng.integers(1, 5)) if size == 1 else size for size in shape]
    return Sample((shape, tuple([2, *wider] if rng.integers(2) else wider)))


register(
    OpSpec(
        name="expand_as",
        family="movement",
        rule=Rule.INPUT_SCALE,
        roles=("input", "other"),
        targets=(MethodTarget("expand_as", _bind),),
        float_kernel=float_kernel,
        lower=_lower,
        march=(MarchRule(("bayes", "nash")),),
        flops=no_flops,
        sample=_sample,
        doc="dimensions of size 1 repeated to the shape of another tensor",
    )
)
