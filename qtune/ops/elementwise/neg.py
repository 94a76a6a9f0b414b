"""neg: ``-input``; keeps the input's scale, the code qmin saturates to qmax."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import torch

from qtune.ops.elementwise import limits
from qtune.ops.elementwise.binding import output_elements, sample_unary, unary
from qtune.ops.elementwise.sign_rule import saturating_kernels
from qtune.ops.kernel import Builder, LowerCall
from qtune.ops.registry import register
from qtune.ops.spec import FunctionTarget, MethodTarget, OpSpec, Rule


def _lower(b: Builder, call: LowerCall) -> Any:
    return b.add("Neg", [call.operands[0]])


register(
    OpSpec(
        name="neg",
        family="elementwise",
        rule=Rule.INPUT_SCALE,
        roles=("input",),
        targets=(
            FunctionTarget(torch.neg, unary),
            FunctionTarget(torch.negative, unary),
            FunctionTarget(operator.neg, unary),
            MethodTarget("neg", unary),
            MethodTarget("neg_", unary),
            MethodTarget("negative", unary),
            MethodTarget("negative_", unary),
            MethodTarget("__neg__", unary),
        ),
        float_kernel=torch.neg,
        lower=_lower,
        kernels=saturating_kernels("Neg", "QNeg", torch.neg, np.negative, non_negative=False),
        march=limits.NOT_BERNOULLI,
        flops=output_elements,
        sample=sample_unary,
        doc="-input",
    )
)
