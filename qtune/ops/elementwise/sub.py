"""sub: ``input - alpha * other``, tensors of any dtypes or a number on either side."""

from __future__ import annotations

import operator
from typing import Any

import torch

from qtune.ops.elementwise import limits
from qtune.ops.elementwise.binding import (
    binary,
    operand_value,
    output_elements,
    reflected,
    sample_binary,
)
from qtune.ops.elementwise.summing import convert_sum
from qtune.ops.kernel import Builder, ConvertContext, FloatNode, HbirKernel, LowerCall, Operand
from qtune.ops.registry import register
from qtune.ops.spec import Bound, FunctionTarget, MethodTarget, OpSpec, Rule


def _bind(input: Any, other: Any, *, alpha: Any = 1) -> Bound:
    return Bound((input, other), {"alpha": alpha} if alpha != 1 else {})


def _bind_rsub(input: Any, other: Any, *, alpha: Any = 1) -> Bound:
    return Bound((other, input), {"alpha": alpha} if alpha != 1 else {})


def _sub(input: Any, other: Any, *, alpha: Any = 1) -> torch.Tensor:
    return torch.sub(input, other, alpha=alpha)


def _lower(b: Builder, call: LowerCall) -> Any:
    values = [operand_value(b, call, 0), operand_value(b, call, 1)]
    alpha = call.attrs.get("alpha", 1)
    if alpha == 1:
        return b.add("Sub", values)
    return b.add("ScaledAdd", values, {"alpha": -alpha}, domain="qtune")


def _convert(ctx: ConvertContext, node: FloatNode) -> Operand:
    return convert_sum(ctx, node, (1, -1))


register(
    OpSpec(
        name="sub",
        family="elementwise",
        rule=Rule.OWN_SCALE,
        roles=("input", "other"),
        targets=(
            FunctionTarget(torch.sub, _bind),
            FunctionTarget(torch.subtract, _bind),
            FunctionTarget(torch.rsub, _bind_rsub),
            FunctionTarget(operator.sub, binary),
            FunctionTarget(operator.isub, binary),
            MethodTarget("sub", _bind),
            MethodTarget("sub_", _bind),
            MethodTarget("subtract", _bind),
            MethodTarget("subtract_", _bind),
            MethodTarget("__sub__", binary),
            MethodTarget("__rsub__", reflected),
            MethodTarget("__isub__", binary),
        ),
        float_kernel=_sub,
        lower=_lower,
        kernels=(
            HbirKernel("Sub", run_float=lambda attrs, a, b: torch.sub(a, b), convert=_convert),
        ),
        march=limits.SUB,
        flops=output_elements,
        sample=sample_binary,
        doc="input - alpha * other",
    )
)
