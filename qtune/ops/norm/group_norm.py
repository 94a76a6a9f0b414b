"""group_norm: decomposed into its documented parts, int16 inside (numerics.md section 3)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from qtune.dtype import qint16
from qtune.ops.elementwise import limits
from qtune.ops.norm.parts import (
    affine,
    lower_by_parts,
    normalization_flops,
    random_map,
    standardized,
)
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


def _bind(
    input: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Bound:
    return Bound((input, weight, bias), {"num_groups": int(num_groups), "eps": float(eps)})


def _bind_torch(
    input: Any,
    num_groups: int,
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Bound:
    return _bind(input, num_groups, weight, bias, eps)


def _bind_module(module: nn.GroupNorm, input: Any) -> Bound:
    return _bind(input, module.num_groups, eps=module.eps)


def _group_norm(
    input: torch.Tensor,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    *,
    num_groups: int,
    eps: float,
) -> torch.Tensor:
    return F.group_norm(input, num_groups, weight, bias, eps)


def _decompose(builder: DecomposeBuilder, bound: Bound) -> Any:
    x, weight, bias = bound.tensors
    shape, groups = builder.shape(x), bound.attrs["num_groups"]
    sizes = (groups, shape[1] // groups)
    grouped = builder.call("unflatten", (x,), {"dim": 1, "sizes": sizes}, part="group")
    dims = tuple(range(2, len(shape) + 1))
    last = weight is None and bias is None
    y = standardized(builder, grouped, dims, bound.attrs["eps"], last=last)
    channels = {"start_dim": 1, "end_dim": 2}
    inner = None if last else qint16
    y = builder.call("flatten", (y,), channels, part="ungroup", forced_dtype=inner)
    return affine(builder, y, weight, bias, (-1, *[1] * (len(shape) - 2)))


def _sample(rng: np.random.Generator) -> Sample:
    groups, each = (int(v) for v in rng.integers(1, 4, 2))
    shape = random_map(rng, groups * each)
    vector = (groups * each,)
    return Sample(
        (shape, vector, vector if rng.integers(2) else None), {"num_groups": groups, "eps": 1e-5}
    )


register(
    OpSpec(
        name="group_norm",
        family="norm",
        rule=Rule.DECOMPOSED,
        roles=("input", "weight", "bias"),
        targets=(
            ModuleTarget(nn.GroupNorm, _bind_module, {"weight": "weight", "bias": "bias"}),
            FunctionTarget(F.group_norm, _bind),
            FunctionTarget(torch.group_norm, _bind_torch),
        ),
        float_kernel=_group_norm,
        lower=lower_by_parts(_decompose),
        decompose=_decompose,
        march=limits.NOT_BERNOULLI,
        flops=normalization_flops,
        sample=_sample,
        doc="layer normalization over groups of channels, weight and bias per channel",
    )
)
