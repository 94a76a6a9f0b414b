"""lerp: between two tensors; sub, mul and add, int16 inside."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from qtune.dtype import qint16
from qtune.ops.elementwise import limits
from qtune.ops.elementwise.binding import operand_value, output_elements
from qtune.ops.kernel import Builder, LowerCall
from qtune.ops.registry import register
from qtune.ops.spec import (
    Bound,
    DecomposeBuilder,
    FunctionTarget,
    MethodTarget,
    OpSpec,
    Rule,
    Sample,
)


def _bind(input: Any, end: Any, weight: Any) -> Bound:
    return Bound((input, end, weight))


def _lower(b: Builder, call: LowerCall) -> Any:
    start, end, _ = call.operands
    way = b.add("Mul", [b.add("Sub", [end, start]), operand_value(b, call, 2)])
    return b.add("Add", [start, way])


def _decompose(builder: DecomposeBuilder, bound: Bound) -> Any:
    start, end, weight = bound.tensors
    way = builder.call("sub", (end, start), part="sub", forced_dtype=qint16)
    part = builder.call("mul", (way, weight), part="mul", forced_dtype=qint16)
    return builder.call("add", (start, part), part="add")


def _sample(rng: np.random.Generator) -> Sample:
    shape = tuple(int(v) for v in rng.integers(1, 7, 3))
    return Sample((shape, shape, None), numbers={2: float(rng.uniform(0, 1))})


register(
    OpSpec(
        name="lerp",
        family="elementwise",
        rule=Rule.DECOMPOSED,
        roles=("input", "end", "weight"),
        targets=(
            FunctionTarget(torch.lerp, _bind),
            MethodTarget("lerp", _bind),
            MethodTarget("lerp_", _bind),
        ),
        float_kernel=torch.lerp,
        lower=_lower,
        decompose=_decompose,
        march=limits.NOT_BERNOULLI,
        flops=output_elements,
        sample=_sample,
        doc="input + weight * (end - input): sub, mul, add; int16 inside",
    )
)
