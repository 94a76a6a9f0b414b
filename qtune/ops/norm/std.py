"""std: the sqrt table of the variance; int16 inside (numerics.md section 3)."""

from __future__ import annotations

from typing import Any

import torch

from qtune.dtype import qint16
from qtune.ops.elementwise import limits
from qtune.ops.elementwise.binding import input_elements
from qtune.ops.norm.parts import lower_by_parts
from qtune.ops.norm.variance import bind_variance, sample_variance, variance
from qtune.ops.registry import register
from qtune.ops.spec import Bound, DecomposeBuilder, FunctionTarget, MethodTarget, OpSpec, Rule


def _std(
    input: torch.Tensor, *, dim: tuple[int, ...] | None, keepdim: bool, correction: int
) -> torch.Tensor:
    return torch.std(input, dim, correction=correction, keepdim=keepdim)


def _decompose(builder: DecomposeBuilder, bound: Bound) -> Any:
    found = variance(builder, bound, qint16)
    return builder.call("sqrt", (found,), part="sqrt")


register(
    OpSpec(
        name="std",
        family="norm",
        rule=Rule.DECOMPOSED,
        roles=("input",),
        targets=(FunctionTarget(torch.std, bind_variance), MethodTarget("std", bind_variance)),
        float_kernel=_std,
        lower=lower_by_parts(_decompose),
        decompose=_decompose,
        march=limits.NOT_BERNOULLI,
        flops=input_elements,
        sample=sample_variance,
        doc="standard deviation along dimensions",
    )
)
