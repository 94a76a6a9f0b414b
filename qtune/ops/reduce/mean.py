"""mean: exact sum of the codes, one requantize to a scale of its own (numerics.md section 3)."""

from __future__ import annotations

from typing import Any

import torch

from qtune.ops.elementwise import limits
from qtune.ops.elementwise.binding import input_elements
from qtune.ops.kernel import ConvertContext, FloatNode, HbirKernel, Operand
from qtune.ops.reduce.reducing import (
    RAISED_KERNEL,
    bind_reduction,
    convert_sum,
    lower_as,
    run_as,
    sample_reduction,
)
from qtune.ops.reduce.stepwise import steps_of
from qtune.ops.registry import register
from qtune.ops.spec import Bound, FunctionTarget, MethodTarget, OpSpec, Rule


def _bind(input: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Bound:
    return bind_reduction("mean", input, dim, keepdim, dtype)


def _mean(input: torch.Tensor, *, dim: Any = None, keepdim: bool = False) -> torch.Tensor:
    return torch.mean(input, dim, keepdim)


def _convert(ctx: ConvertContext, node: FloatNode) -> Operand:
    return convert_sum(ctx, node, mean=True)


register(
    OpSpec(
        name="mean",
        family="reduce",
        rule=Rule.OWN_SCALE,
        roles=("input",),
        targets=(FunctionTarget(torch.mean, _bind), MethodTarget("mean", _bind)),
        float_kernel=_mean,
        lower=lower_as("ReduceMean"),
        kernels=(
            HbirKernel("ReduceMean", run_float=run_as(torch.mean), convert=_convert),
            RAISED_KERNEL,
        ),
        march=limits.MEAN,
        flops=input_elements,
        steps=steps_of("mean"),
        sample=sample_reduction,
        doc="mean along dimensions",
    )
)
