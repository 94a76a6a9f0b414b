"""pow: a power with a constant exponent or base, made of other operators."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import torch

from qtune.ops.elementwise import limits
from qtune.ops.elementwise.binding import (
    binary,
    operand_value,
    output_elements,
    reflected,
    sample_unary,
)
from qtune.ops.kernel import Attrs, Builder, HbirKernel, LowerCall
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

_UNARY = {0.5: "sqrt", -0.5: "rsqrt", -1: "reciprocal"}


def _pow(input: Any, exponent: Any) -> torch.Tensor:
    return torch.pow(input, exponent)


def _bind_square(input: Any) -> Bound:
    return Bound((input, 2))


def _lower(b: Builder, call: LowerCall) -> Any:
    return b.add("Pow", [operand_value(b, call, 0), operand_value(b, call, 1)])


def _decompose(builder: DecomposeBuilder, bound: Bound) -> Any:
    base, exponent = bound.tensors
    if builder.is_tensor(base) and exponent == 2:
        return builder.call("mul", (base, base), part="mul")
    if builder.is_tensor(base) and exponent in _UNARY:
        return builder.call(_UNARY[exponent], (base,), part=_UNARY[exponent])
    if isinstance(exponent, int | float):
        return builder.call("power_to", (base,), {"exponent": float(exponent)}, part="power_to")
    if isinstance(base, int | float):
        return builder.call("power_of", (exponent,), {"base": float(base)}, part="power_of")
    raise NotImplementedError(
        f"pow has an integer form where the base or the exponent is a number, got {exponent!r} as "
        "the exponent. Write it with mul, exp and log, or keep it outside the quantized region"
    )


def _run_float(attrs: Attrs, base: torch.Tensor, exponent: torch.Tensor) -> torch.Tensor:
    # torch has shortcuts for numbers (x * x for 2) that it doesn't take for tensors of one element.
    return torch.pow(base, exponent.item() if exponent.dim() == 0 else exponent)


def _sample(rng: np.random.Generator) -> Sample:
    return Sample((*sample_unary(rng).shapes, None), numbers={1: 2})


register(
    OpSpec(
        name="pow",
        family="elementwise",
        rule=Rule.DECOMPOSED,
        roles=("input", "exponent"),
        targets=(
            FunctionTarget(torch.pow, binary),
            FunctionTarget(torch.square, _bind_square),
            FunctionTarget(operator.pow, binary),
            FunctionTarget(operator.ipow, binary),
            MethodTarget("pow", binary),
            MethodTarget("pow_", binary),
            MethodTarget("square", _bind_square),
            MethodTarget("square_", _bind_square),
            MethodTarget("__pow__", binary),
            MethodTarget("__ipow__", binary),
            MethodTarget("__rpow__", reflected),
        ),
        float_kernel=_pow,
        lower=_lower,
        decompose=_decompose,
        kernels=(HbirKernel("Pow", run_float=_run_float),),
        march=limits.NOT_BERNOULLI,
        flops=output_elements,
        sample=_sample,
        doc="input ** exponent, one of them a number: mul for the exponent 2, else a table",
    )
)
