"""add: ``input + alpha * other``, tensors of any dtypes or a number on either side."""

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
from qtune.ops.elementwise.fast import run_everywhere
from qtune.ops.elementwise.summing import convert_sum, fast_add, reference_add
from qtune.ops.kernel import (
    Attrs,
    Builder,
    ConvertContext,
    FloatNode,
    HbirKernel,
    LowerCall,
    Operand,
)
from qtune.ops.registry import register
from qtune.ops.spec import Bound, FunctionTarget, FuseRole, MethodTarget, OpSpec, Rule


def _bind(input: Any, other: Any, *, alpha: Any = 1) -> Bound:
    return Bound((input, other), {"alpha": alpha} if alpha != 1 else {})


def _add(input: Any, other: Any, *, alpha: Any = 1) -> torch.Tensor:
    return torch.add(input, other, alpha=alpha)


def _lower(b: Builder, call: LowerCall) -> Any:
    values = [operand_value(b, call, 0), operand_value(b, call, 1)]
    alpha = call.attrs.get("alpha", 1)
    if alpha == 1:
        return b.add("Add", values)
    return b.add("ScaledAdd", values, {"alpha": alpha}, domain="qtune")


def _convert(ctx: ConvertContext, node: FloatNode) -> Operand:
    return convert_sum(ctx, node, (1, 1))


def _convert_scaled(ctx: ConvertContext, node: FloatNode) -> Operand:
    return convert_sum(ctx, node, (1, node.attrs["alpha"]), "qtune")


def _run_scaled(attrs: Attrs, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.add(a, b, alpha=attrs["alpha"])


register(
    OpSpec(
        name="add",
        family="elementwise",
        rule=Rule.OWN_SCALE,
        roles=("input", "other"),
        targets=(
            FunctionTarget(torch.add, _bind),
            FunctionTarget(operator.add, binary),
            FunctionTarget(operator.iadd, binary),
            MethodTarget("add", _bind),
            MethodTarget("add_", _bind),
            MethodTarget("__add__", binary),
            MethodTarget("__radd__", reflected),
            MethodTarget("__iadd__", binary),
        ),
        float_kernel=_add,
        lower=_lower,
        kernels=(
            HbirKernel("Add", run_float=lambda attrs, a, b: torch.add(a, b), convert=_convert),
            run_everywhere(
                HbirKernel("ScaledAdd", "qtune", run_float=_run_scaled, convert=_convert_scaled)
            ),
            HbirKernel("QAdd", "qtune", reference=reference_add, fast=fast_add),
        ),
        fuse=FuseRole.ADD,
        march=limits.ADD_MUL,
        flops=output_elements,
        sample=sample_binary,
        doc="input + alpha * other",
    )
)
