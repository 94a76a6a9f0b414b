"""logsumexp: max, sub, exp table, sum, log table, add; int16 inside, as in log_softmax."""

from __future__ import annotations

import math
from typing import Any

import torch

from qtune.dtype import qint16
from qtune.ops.elementwise import limits
from qtune.ops.elementwise.binding import input_elements
from qtune.ops.kernel import Attrs, Builder, HbirKernel, LowerCall
from qtune.ops.reduce.reducing import bind_reduction, lower_as, sample_reduction
from qtune.ops.registry import register
from qtune.ops.spec import (
    Bound,
    DecomposeBuilder,
    FunctionTarget,
    MethodTarget,
    OpSpec,
    Rule,
)


def _bind(input: Any, dim: Any, keepdim: bool = False) -> Bound:
    return bind_reduction("logsumexp", input, dim, keepdim)


def _logsumexp(input: torch.Tensor, *, dim: Any, keepdim: bool = False) -> torch.Tensor:
    return torch.logsumexp(input, tuple(range(input.dim())) if dim is None else dim, keepdim)


def _lower(b: Builder, call: LowerCall) -> Any:
    return lower_as("ReduceLogSumExp")(b, call)


def _run_float(attrs: Attrs, x: torch.Tensor, axes: torch.Tensor) -> torch.Tensor:
    return torch.logsumexp(x, tuple(axes.tolist()), bool(attrs.get("keepdims", 1)))


def _decompose(builder: DecomposeBuilder, bound: Bound) -> Any:
    (x,) = bound.tensors
    dims = bound.attrs["dim"] or tuple(range(len(builder.shape(x))))
    along = {"dim": dims, "keepdim": True}
    largest = builder.call("amax", (x,), along, part="max")
    shifted = builder.call("sub", (x, largest), part="sub", forced_dtype=qint16)
    powers = builder.call("exp", (shifted,), part="exp", forced_dtype=qint16)
    count = math.prod(builder.shape(x)[d] for d in dims)
    total = builder.call(
        "sum", (powers,), along, part="sum", forced_dtype=qint16, bounds=(1.0, float(count))
    )
    logarithm = builder.call(
        "log", (total,), part="log", forced_dtype=qint16, bounds=(0.0, math.log(count))
    )
    result = builder.call("add", (logarithm, largest), part="add")
    if bound.attrs["keepdim"]:
        return result
    return builder.call("squeeze", (result,), {"dim": dims}, part="squeeze")


register(
    OpSpec(
        name="logsumexp",
        family="reduce",
        rule=Rule.DECOMPOSED,
        roles=("input",),
        targets=(
            FunctionTarget(torch.logsumexp, _bind),
            FunctionTarget(torch.special.logsumexp, _bind),
            MethodTarget("logsumexp", _bind),
        ),
        float_kernel=_logsumexp,
        lower=_lower,
        decompose=_decompose,
        kernels=(HbirKernel("ReduceLogSumExp", run_float=_run_float),),
        march=limits.NOT_BERNOULLI,
        flops=input_elements,
        sample=sample_reduction,
        doc="log(sum(exp(x))) along dimensions; int16 inside",
    )
)
