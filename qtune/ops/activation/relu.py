"""relu: ``max(x, 0)``; keeps the input's scale (numerics.md section 3)."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from qtune.ops.activation.clamping import convert_clamp
from qtune.ops.elementwise.binding import output_elements, sample_unary, unary, unary_module
from qtune.ops.kernel import Builder, ConvertContext, FloatNode, HbirKernel, LowerCall, Operand
from qtune.ops.registry import register
from qtune.ops.spec import FunctionTarget, FuseRole, MethodTarget, ModuleTarget, OpSpec, Rule


def _lower(b: Builder, call: LowerCall) -> Any:
    return b.add("Relu", [call.operands[0]])


def _convert(ctx: ConvertContext, node: FloatNode) -> Operand:
    return convert_clamp(ctx, node, 0.0, None)


register(
    OpSpec(
        name="relu",
        family="activation",
        rule=Rule.INPUT_SCALE,
        roles=("input",),
        targets=(
            ModuleTarget(nn.ReLU, unary_module),
            FunctionTarget(F.relu, unary),
            FunctionTarget(torch.relu, unary),
            FunctionTarget(torch.relu_, unary),
            MethodTarget("relu", unary),
            MethodTarget("relu_", unary),
        ),
        float_kernel=F.relu,
        lower=_lower,
        kernels=(HbirKernel("Relu", run_float=lambda attrs, x: torch.relu(x), convert=_convert),),
        fuse=FuseRole.RELU,
        flops=output_elements,
        sample=sample_unary,
        doc="max(x, 0)",
    )
)
