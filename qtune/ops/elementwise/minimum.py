"""minimum: the smaller of two tensors, compared over a common shift (numerics.md section 3)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from qtune.ops.elementwise import limits
from qtune.ops.elementwise.binding import binary, output_elements, sample_binary
from qtune.ops.elementwise.operands import copy_node, is_plain
from qtune.ops.elementwise.selecting import deferred_choice, extremum_kernel
from qtune.ops.kernel import Builder, ConvertContext, FloatNode, HbirKernel, LowerCall, Operand
from qtune.ops.registry import register
from qtune.ops.spec import FunctionTarget, MethodTarget, OpSpec, Rule


def _lower(b: Builder, call: LowerCall) -> Any:
    return b.add("Min", call.operands)


def _convert(ctx: ConvertContext, node: FloatNode) -> Operand:
    if is_plain(node):
        return copy_node(ctx, node)
    return deferred_choice(ctx, "QMinimum", node, (0, 1), [])


register(
    OpSpec(
        name="minimum",
        family="elementwise",
        rule=Rule.OWN_SCALE,
        roles=("input", "other"),
        targets=(FunctionTarget(torch.minimum, binary), MethodTarget("minimum", binary)),
        float_kernel=torch.minimum,
        lower=_lower,
        kernels=(
            HbirKernel("Min", run_float=lambda attrs, a, b: torch.minimum(a, b), convert=_convert),
            extremum_kernel("QMinimum", np.minimum, torch.minimum),
        ),
        march=limits.NOT_BERNOULLI,
        flops=output_elements,
        sample=sample_binary,
        doc="the smaller of two tensors",
    )
)
