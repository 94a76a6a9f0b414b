"""softmin: softmax of the negated input; neg and softmax."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from qtune.ops.elementwise import limits
from qtune.ops.elementwise.binding import input_elements
from qtune.ops.kernel import Builder, LowerCall
from qtune.ops.reduce.normalizing import dimension
from qtune.ops.registry import register
from qtune.ops.spec import (
    Bound,
    DecomposeBuilder,
    FunctionTarget,
    ModuleTarget,
    OpSpec,
    Rule,
    Sample,
)


def _bind(input: Any, dim: Any = None, _stacklevel: int = 3, dtype: Any = None) -> Bound:
    return Bound((input,), {"dim": dim, "dtype": dtype})


def _bind_module(module: nn.Softmin, input: Any) -> Bound:
    return _bind(input, module.dim)


def _softmin(input: torch.Tensor, *, dim: Any = None, dtype: Any = None) -> torch.Tensor:
    return torch.softmax(-input, dimension(dim, input.dim()), dtype)


def _lower(b: Builder, call: LowerCall) -> Any:
    rank = len(call.input_shapes[0] or ())
    axis = dimension(call.attrs["dim"], rank) % max(rank, 1)
    return b.add("Softmax", [b.add("Neg", [call.operands[0]])], {"axis": axis})


def _decompose(builder: DecomposeBuilder, bound: Bound) -> Any:
    negated = builder.call("neg", bound.tensors, part="neg")
    return builder.call("softmax", (negated,), bound.attrs, part="softmax")


def _sample(rng: Any) -> Sample:
    shape = tuple(int(v) for v in rng.integers(1, 9, 3))
    return Sample((shape,), {"dim": int(rng.integers(-3, 3)), "dtype": None})


register(
    OpSpec(
        name="softmin",
        family="reduce",
        rule=Rule.DECOMPOSED,
        roles=("input",),
        targets=(ModuleTarget(nn.Softmin, _bind_module), FunctionTarget(F.softmin, _bind)),
        float_kernel=_softmin,
        lower=_lower,
        decompose=_decompose,
        march=limits.NOT_BERNOULLI,
        flops=input_elements,
        sample=_sample,
        doc="softmax of -input",
    )
)
