"""relu6: ``min(max(x, 0), 6)``; keeps the input's scale, codes clamped at those of 0 and 6."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import nn

from qtune.ops.activation.clamping import lower_clip
from qtune.ops.elementwise.binding import output_elements, sample_unary, unary, unary_module
from qtune.ops.kernel import Builder, LowerCall
from qtune.ops.registry import register
from qtune.ops.spec import FunctionTarget, FuseRole, ModuleTarget, OpSpec, Rule


def _lower(b: Builder, call: LowerCall) -> Any:
    return lower_clip(b, call.operands[0], 0.0, 6.0)


register(
    OpSpec(
        name="relu6",
        family="activation",
        rule=Rule.INPUT_SCALE,
        roles=("input",),
        targets=(ModuleTarget(nn.ReLU6, unary_module), FunctionTarget(F.relu6, unary)),
        float_kernel=F.relu6,
        lower=_lower,
        fuse=FuseRole.RELU,
        flops=output_elements,
        sample=sample_unary,
        doc="min(max(x, 0), 6)",
    )
)
