"""var: mean, difference, square, mean of that; int16 inside (numerics.md section 3)."""

from __future__ import annotations

from typing import Any

import torch

from qtune.ops.elementwise import limits
from qtune.ops.elementwise.binding import input_elements
from qtune.ops.norm.parts import lower_by_parts
from qtune.ops.norm.variance import bind_variance, sample_variance, variance
from qtune.ops.registry import register
from qtune.ops.spec import Bound, DecomposeBuilder, FunctionTarget, MethodTarget, OpSpec, Rule


def _var(
    input: torch.Tensor, *, dim: tuple[int, ...] | None, keepdim: bool, correction: int
) -> torch.Tensor:
    return torch.var(input, dim, correction=correction, keepdim=keepdim)


def _decompose(builder: DecomposeBuilder, bound: Bound) -> Any:
    return variance(builder, bound)


register(
    OpSpec(
        name="var",
        family="norm",
        rule=Rule.DECOMPOSED,
        roles=("input",),
        targets=(FunctionTarget(torch.var, bind_variance), MethodTarget("var", bind_variance)),
        float_kernel=_var,
        lower=lower_by_parts(_decompose),
        decompose=_decompose,
        march=limits.NOT_BERNOULLI,
        flops=input_elements,
        sample=sample_variance,
        doc="variance along dimensions",
    )
)
