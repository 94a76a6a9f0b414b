"""clamp: between two bounds; numbers cut the codes, tensors are a maximum and a minimum."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import fx

from qtune.ops.activation.clamping import lower_clip
from qtune.ops.elementwise import limits
from qtune.ops.elementwise.binding import output_elements, sample_unary
from qtune.ops.kernel import Builder, LowerCall
from qtune.ops.movement.moving import is_tensor
from qtune.ops.registry import register
from qtune.ops.spec import (
    Bound,
    DecomposeBuilder,
    FunctionTarget,
    MethodTarget,
    OpSpec,
    Rule,
    Sample,
)


def _bind(input: Any, min: Any = None, max: Any = None) -> Bound:
    for name, bound in (("min", min), ("max", max)):
        if isinstance(bound, fx.Node) and not is_tensor(bound):
            raise NotImplementedError(
                f"clamp with a size as {name}; use a number, or a tensor that holds the bound"
            )
    return Bound((input, min, max))


def _bind_min(input: Any, min: Any) -> Bound:
    return _bind(input, min=min)


def _bind_max(input: Any, max: Any) -> Bound:
    return _bind(input, max=max)


def _clamp(input: torch.Tensor, min: Any = None, max: Any = None) -> torch.Tensor:
    return torch.clamp(input, min, max)


def _lower(b: Builder, call: LowerCall) -> Any:
    value, low, high = (*call.operands, None, None)[:3]
    if not any(_is_tensor(bound) for bound in (low, high)):
        return lower_clip(b, value, low, high)
    value = value if low is None else b.add("Max", [value, low])
    return value if high is None else b.add("Min", [value, high])


def _is_tensor(bound: Any) -> bool:
    """Whether a bound is there and no number; torch takes two of one kind."""
    return bound is not None and not isinstance(bound, int | float)


def _decompose(builder: DecomposeBuilder, bound: Bound) -> Any:
    x, low, high = bound.tensors
    if not any(_is_tensor(value) for value in (low, high)):
        return builder.call("clamp_scalar", (x,), {"min": low, "max": high}, part="clamp")
    x = x if low is None else builder.call("maximum", (x, low), part="maximum")
    return x if high is None else builder.call("minimum", (x, high), part="minimum")


def _sample(rng: np.random.Generator) -> Sample:
    low, high = sorted(float(v) for v in rng.uniform(-2, 2, 2))
    (shape,) = sample_unary(rng).shapes
    if shape is None or rng.integers(2):
        return Sample((shape, None, None), numbers={1: low, 2: high})
    return Sample((shape, shape, shape) if rng.integers(2) else (shape, shape, None))


register(
    OpSpec(
        name="clamp",
        family="activation",
        rule=Rule.DECOMPOSED,
        roles=("input", "min", "max"),
        targets=(
            FunctionTarget(torch.clamp, _bind),
            FunctionTarget(torch.clamp_, _bind),
            FunctionTarget(torch.clip, _bind),
            FunctionTarget(torch.clip_, _bind),
            FunctionTarget(torch.clamp_min, _bind_min),
            FunctionTarget(torch.clamp_min_, _bind_min),
            FunctionTarget(torch.clamp_max, _bind_max),
            FunctionTarget(torch.clamp_max_, _bind_max),
            MethodTarget("clamp", _bind),
            MethodTarget("clamp_", _bind),
            MethodTarget("clip", _bind),
            MethodTarget("clip_", _bind),
            MethodTarget("clamp_min", _bind_min),
            MethodTarget("clamp_min_", _bind_min),
            MethodTarget("clamp_max", _bind_max),
            MethodTarget("clamp_max_", _bind_max),
        ),
        float_kernel=_clamp,
        lower=_lower,
        decompose=_decompose,
        march=limits.NOT_BERNOULLI,
        flops=output_elements,
        sample=_sample,
        doc="input between min and max, numbers (clamp_scalar) or tensors (maximum, minimum)",
    )
)
