"""flip: dimensions in reverse order; keeps the input's scale."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from qtune.ops.kernel import Builder, LowerCall
from qtune.ops.movement.moving import axis_of, int64, no_flops, sizes
from qtune.ops.registry import register
from qtune.ops.spec import Bound, FunctionTarget, MarchRule, MethodTarget, OpSpec, Rule, Sample

_TO_FRONT = -(2**63)
"""The end of an ONNX Slice with a negative step that includes index 0."""


def _bind(input: Any, *dims: Any, **kwargs: Any) -> Bound:
    return Bound((input,), {"dims": sizes(dims, "dims", kwargs)})


def _lower(b: Builder, call: LowerCall) -> Any:
    rank = len(call.input_shapes[0] or ())
    axes = [axis_of(int(d), rank) for d in call.attrs["dims"]]
    return emit_flip(b, call.operands[0], axes)


def emit_flip(b: Builder, value: Any, axes: list[int]) -> Any:
    """A Slice with step -1 along ``axes``."""
    if not axes:
        return b.add("Identity", [value])
    numbers = ([-1] * len(axes), [_TO_FRONT] * len(axes), axes, [-1] * len(axes))
    names = ("starts", "ends", "axes", "steps")
    constants = [b.constant(int64(v), name) for v, name in zip(numbers, names, strict=True)]
    return b.add("Slice", [value, *constants])


def _sample(rng: np.random.Generator) -> Sample:
    shape = tuple(int(v) for v in rng.integers(1, 5, 4))
    dims = tuple(int(v) for v in rng.permutation(4)[: int(rng.integers(0, 4))])
    return Sample((shape,), {"dims": dims})


register(
    OpSpec(
        name="flip",
        family="movement",
        rule=Rule.INPUT_SCALE,
        roles=("input",),
        targets=(
            FunctionTarget(torch.flip, _bind),
            FunctionTarget(torch.fliplr, lambda input: _bind(input, 1)),
            FunctionTarget(torch.flipud, lambda input: _bind(input, 0)),
            MethodTarget("flip", _bind),
            MethodTarget("fliplr", lambda input: _bind(input, 1)),
            MethodTarget("flipud", lambda input: _bind(input, 0)),
        ),
        float_kernel=torch.flip,
        lower=_lower,
        march=(MarchRule(("bayes",)), MarchRule(("nash",), ("qint8",), ("qint8",))),
        flops=no_flops,
        sample=_sample,
        doc="dimensions in reverse order",
    )
)
