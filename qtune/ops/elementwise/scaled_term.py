"""What addcmul and addcdiv share: a tensor plus a scaled product or quotient of two others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from qtune.dtype import qint16
from qtune.ops.elementwise import limits
from qtune.ops.elementwise.binding import output_elements
from qtune.ops.kernel import Builder, LowerCall
from qtune.ops.spec import (
    Bound,
    DecomposeBuilder,
    FunctionTarget,
    MethodTarget,
    OpSpec,
    Rule,
    Sample,
)


def scaled_term(
    name: str, function: Callable[..., torch.Tensor], part: str, onnx_op: str, doc: str
) -> OpSpec:
    """The operator ``input + value * part(tensor1, tensor2)``; the part is int16."""

    def float_kernel(
        input: torch.Tensor, tensor1: torch.Tensor, tensor2: torch.Tensor, *, value: Any = 1
    ) -> torch.Tensor:
        return function(input, tensor1, tensor2, value=value)

    def lower(b: Builder, call: LowerCall) -> Any:
        base, first, second = call.operands
        inner, value = b.add(onnx_op, [first, second]), call.attrs["value"]
        if value == 1:
            return b.add("Add", [base, inner])
        return b.add("ScaledAdd", [base, inner], {"alpha": value}, domain="qtune")

    def decompose(builder: DecomposeBuilder, bound: Bound) -> Any:
        base, first, second = bound.tensors
        inner = builder.call(part, (first, second), part=part, forced_dtype=qint16)
        value = bound.attrs["value"]
        return builder.call(
            "add", (base, inner), {} if value == 1 else {"alpha": value}, part="add"
        )

    return OpSpec(
        name=name,
        family="elementwise",
        rule=Rule.DECOMPOSED,
        roles=("input", "tensor1", "tensor2"),
        targets=(
            FunctionTarget(function, _bind),
            MethodTarget(name, _bind),
            MethodTarget(f"{name}_", _bind),
        ),
        float_kernel=float_kernel,
        lower=lower,
        decompose=decompose,
        march=limits.NOT_BERNOULLI,
        flops=output_elements,
        sample=_sample,
        doc=doc,
    )


def _bind(input: Any, tensor1: Any, tensor2: Any, *, value: Any = 1) -> Bound:
    return Bound((input, tensor1, tensor2), {"value": value})


def _sample(rng: np.random.Generator) -> Sample:
    shape = tuple(int(v) for v in rng.integers(1, 7, 3))
    return Sample((shape,) * 3, {"value": float(rng.uniform(0.3, 2.0))})
