"""reshape_as, view_as: the elements of one tensor in the shape of another; keeps the scale."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from qtune.ops.kernel import Builder, ExampleSize, LowerCall
from qtune.ops.movement.moving import no_flops
from qtune.ops.movement.reshape import emit_reshape, open_shape
from qtune.ops.registry import register
from qtune.ops.spec import Bound, MethodTarget, OpSpec, Rule, Sample


def _bind(input: Any, other: Any) -> Bound:
    return Bound((input, other))


def float_kernel(x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """``x`` in the shape of ``other``, whose values don't matter."""
    return x.reshape(other.shape)


def _lower(b: Builder, call: LowerCall) -> Any:
    sizes = tuple(ExampleSize(size) for size in call.input_shapes[1] or ())
    return emit_reshape(b, call.operands[0], open_shape(sizes, call.input_shapes[0] or ()))


def _sample(rng: np.random.Generator) -> Sample:
    n, c, h, w = (int(v) for v in rng.integers(1, 6, 4))
    return Sample(((n, c, h, w), [(n, c * h * w), (n, c, h * w), (n * c, h, w)][rng.integers(3)]))


register(
    OpSpec(
        name="reshape_as",
        family="movement",
        rule=Rule.INPUT_SCALE,
        roles=("input", "other"),
        targets=(MethodTarget("reshape_as", _bind), MethodTarget("view_as", _bind)),
        float_kernel=float_kernel,
        lower=_lower,
        flops=no_flops,
        sample=_sample,
        doc="the elements of one tensor in the shape of another",
    )
)
