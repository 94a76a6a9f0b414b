"""argsort: the indices that sort a dimension; int64, no scale."""

from __future__ import annotations

from typing import Any

import torch

from qtune.ops.elementwise import limits
from qtune.ops.elementwise.binding import input_elements
from qtune.ops.kernel import Builder, LowerCall
from qtune.ops.reduce.ordering import emit_top, ordered
from qtune.ops.reduce.sort import bind_sort, sample_sort
from qtune.ops.registry import register
from qtune.ops.spec import FunctionTarget, MethodTarget, OpSpec, Rule


def _argsort(input: torch.Tensor, *, dim: int, descending: bool) -> torch.Tensor:
    return ordered(input, dim, descending)[1]


def _lower(b: Builder, call: LowerCall) -> Any:
    _, indices = emit_top(b, call, None, call.attrs["descending"])
    return b.add("Identity", [indices])


register(
    OpSpec(
        name="argsort",
        family="reduce",
        rule=Rule.NO_SCALE,
        roles=("input",),
        targets=(FunctionTarget(torch.argsort, bind_sort), MethodTarget("argsort", bind_sort)),
        float_kernel=_argsort,
        lower=_lower,
        march=limits.NOT_BERNOULLI,
        flops=input_elements,
        sample=sample_sort,
        doc="indices that sort a dimension, stable",
    )
)
