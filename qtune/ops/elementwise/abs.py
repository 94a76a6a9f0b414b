"""abs: ``|input|``; keeps the input's scale, the code qmin saturates to qmax."""

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
    return b.add("Abs", [call.operands[0]])


register(
    OpSpec(
        name="abs",
        family="elementwise",
        rule=Rule.INPUT_SCALE,
        roles=("input",),
        targets=(
            FunctionTarget(torch.abs, unary),
            FunctionTarget(torch.absolute, unary),
            FunctionTarget(operator.abs, unary),
            MethodTarget("abs", unary),
            MethodTarget("abs_", unary),
            MethodTarget("absolute", unary),
            MethodTarget("absolute_", unary),
            MethodTarget("__abs__", unary),
        ),
        float_kernel=torch.abs,
        lower=_lower,
        kernels=saturating_kernels("Abs", "QAbs", torch.abs, np.abs, non_negative=True),
        march=limits.NOT_BERNOULLI,
        flops=output_elements,
        sample=sample_unary,
        doc="absolute value",
    )
)
