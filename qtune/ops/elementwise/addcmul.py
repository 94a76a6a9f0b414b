"""addcmul: a tensor and the scaled product of two others; mul and add, int16 inside."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from qtune.dtype import qint16
from qtune.ops.elementwise import limits
from qtune.ops.elementwise.binding import output_elements
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


def _bind(input: Any, tensor1: Any, tensor2: Any, *, value: Any = 1) -> Bound:
    return Bound((input, tensor1, tensor2), {"value": value})


def _addcmul(input: Any, tensor1: Any, tensor2: Any, *, value: Any = 1) -> torch.Tensor:
    return torch.addcmul(input, tensor1, tensor2, value=value)


def _lower(b: Builder, call: LowerCall) -> Any:
    base, first, second = call.operands
    inner, value = b.add("Mul", [first, second]), call.attrs["value"]
    if value == 1:
        return b.add("Add", [base, inner])
    return b.add("ScaledAdd", [base, inner], {"alpha": value}, domain="qtune")


def _decompose(builder: DecomposeBuilder, bound: Bound) -> Any:
    base, first, second = bound.tensors
    inner = builder.call("mul", (first, second), part="mul", forced_dtype=qint16)
    value = bound.attrs["value"]
    alpha = {} if value == 1 else {"alpha": value}
    return builder.call("add", (base, inner), alpha, part="add")


def _sample(rng: np.random.Generator) -> Sample:
    shape = tuple(int(v) for v in rng.integers(1, 7, 3))
    return Sample((shape,) * 3, {"value": float(rng.uniform(0.3, 2.0))})


register(
    OpSpec(
        name="addcmul",
        family="elementwise",
        rule=Rule.DECOMPOSED,
        roles=("input", "tensor1", "tensor2"),
        targets=(
            FunctionTarget(torch.addcmul, _bind),
            MethodTarget("addcmul", _bind),
            MethodTarget("addcmul_", _bind),
        ),
        float_kernel=_addcmul,
        lower=_lower,
        decompose=_decompose,
        march=limits.NOT_BERNOULLI,
        flops=output_elements,
        sample=_sample,
        doc="input + value * tensor1 * tensor2: mul, add; int16 inside",
    )
)
