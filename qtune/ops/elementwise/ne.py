"""ne: ``input != other``; a mask without scale, the negation of eq."""

from __future__ import annotations

import operator
from typing import Any

import torch

from qtune.ops.elementwise import limits
from qtune.ops.elementwise.binding import binary, output_elements, sample_binary
from qtune.ops.elementwise.comparison import lower_as
from qtune.ops.kernel import Builder, LowerCall
from qtune.ops.registry import register
from qtune.ops.spec import FunctionTarget, MethodTarget, OpSpec, Rule


def _lower(b: Builder, call: LowerCall) -> Any:
    return b.add("Not", [lower_as("Equal")(b, call)])


register(
    OpSpec(
        name="ne",
        family="elementwise",
        rule=Rule.NO_SCALE,
        roles=("input", "other"),
        targets=(
            FunctionTarget(torch.ne, binary),
            FunctionTarget(torch.not_equal, binary),
            FunctionTarget(operator.ne, binary),
            MethodTarget("ne", binary),
            MethodTarget("not_equal", binary),
            MethodTarget("__ne__", binary),
        ),
        float_kernel=torch.ne,
        lower=_lower,
        march=limits.NOT_BERNOULLI,
        flops=output_elements,
        sample=sample_binary,
        doc="input != other",
    )
)
