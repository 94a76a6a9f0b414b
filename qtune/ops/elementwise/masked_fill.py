"""masked_fill: ``value`` where the mask holds, else ``input``; a choice like where."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from qtune.ops.elementwise import limits
from qtune.ops.elementwise.binding import operand_value, output_elements
from qtune.ops.kernel import Builder, LowerCall
from qtune.ops.registry import register
from qtune.ops.spec import Bound, FunctionTarget, MethodTarget, OpSpec, Rule, Sample


def _bind(input: Any, mask: Any, value: Any) -> Bound:
    return Bound((input, mask, value))


def _lower(b: Builder, call: LowerCall) -> Any:
    value = operand_value(b, call, 2)
    return b.add("Where", [call.operands[1], value, call.operands[0]])


def _sample(rng: np.random.Generator) -> Sample:
    height, width = (int(v) for v in rng.integers(1, 7, 2))
    return Sample(((2, 3, height, width), (height, width), None), numbers={2: -1.5})


register(
    OpSpec(
        name="masked_fill",
        family="elementwise",
        rule=Rule.OWN_SCALE,
        roles=("input", "mask", "value"),
        targets=(
            FunctionTarget(torch.masked_fill, _bind),
            MethodTarget("masked_fill", _bind),
            MethodTarget("masked_fill_", _bind),
        ),
        float_kernel=torch.masked_fill,
        lower=_lower,
        march=limits.NOT_BERNOULLI,
        flops=output_elements,
        sample=_sample,
        doc="value where the mask holds, else input",
    )
)
