"""glu: one half times the sigmoid table of the other half (numerics.md section 3)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from qtune.ops.elementwise import limits
from qtune.ops.elementwise.binding import output_elements
from qtune.ops.norm.parts import lower_by_parts
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


def _bind(input: Any, dim: int = -1) -> Bound:
    return Bound((input,), {"dim": dim})


def _bind_module(module: nn.GLU, input: Any) -> Bound:
    return _bind(input, module.dim)


def _glu(input: torch.Tensor, *, dim: int = -1) -> torch.Tensor:
    return F.glu(input, dim)


def _decompose(builder: DecomposeBuilder, bound: Bound) -> Any:
    (x,) = bound.tensors
    shape = builder.shape(x)
    dim = bound.attrs["dim"] % len(shape)
    middle = shape[dim] // 2

    def half(items: slice, part: str) -> Any:
        index = (*[slice(None)] * dim, items)
        return builder.call("getitem", (x, None), {"index": index}, part=part)

    values, gates = half(slice(0, middle), "values"), half(slice(middle, 2 * middle), "gates")
    gates = builder.call("sigmoid", (gates,), part="sigmoid")
    return builder.call("mul", (values, gates), part="mul")


def _sample(rng: np.random.Generator) -> Sample:
    shape = [int(v) for v in rng.integers(1, 7, 3)]
    dim = int(rng.integers(-3, 3))
    shape[dim] *= 2
    return Sample((tuple(shape),), {"dim": dim})


register(
    OpSpec(
        name="glu",
        family="activation",
        rule=Rule.DECOMPOSED,
        roles=("input",),
        targets=(ModuleTarget(nn.GLU, _bind_module), FunctionTarget(F.glu, _bind)),
        float_kernel=_glu,
        lower=lower_by_parts(_decompose),
        decompose=_decompose,
        march=limits.NOT_BERNOULLI,
        flops=output_elements,
        sample=_sample,
        doc="a * sigmoid(b) of the halves a and b along a dimension",
    )
)
