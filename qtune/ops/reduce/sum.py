"""sum: exact sum of the codes, one requantize to a scale of its own (numerics.md section 3)."""

from __future__ import annotations

from typing import Any

import torch

from qtune.ops.elementwise import limits
from qtune.ops.elementwise.binding import input_elements
from qtune.ops.kernel import ConvertContext, FloatNode, HbirKernel, Operand
from qtune.ops.reduce.reducing import (
    SUM_KERNEL,
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
    return bind_reduction("sum", input, dim, keepdim, dtype)


def _sum(input: torch.Tensor, *, dim: Any = None, keepdim: bool = False) -> torch.Tensor:
    return torch.sum(input, dim, keepdim)


def _convert(ctx: ConvertContext, node: FloatNode) -> Operand:
    return convert_sum(ctx, node, mean=False)


register(
    OpSpec(
        name="sum",
        family="reduce",
        rule=Rule.OWN_SCALE,
        roles=("input",),
        targets=(FunctionTarget(torch.sum, _bind), MethodTarget("sum", _bind)),
        float_kernel=_sum,
        lower=lower_as("ReduceSum"),
        kernels=(
            HbirKernel("ReduceSum", run_float=run_as(torch.sum), convert=_convert),
            SUM_KERNEL,
        ),
        march=limits.SUM,
        flops=input_elements,
        steps=steps_of("sum"),
        sample=sample_reduction,
        doc="sum along dimensions",
    )
)
