"""rms_norm: decomposed into its documented parts, int16 inside (numerics.md section 3)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from qtune.ops.elementwise import limits
from qtune.ops.norm.parts import (
    affine,
    by_root_mean_square,
    lower_by_parts,
    normalization_flops,
    random_rows,
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


def _bind(input: Any, normalized_shape: Any, weight: Any = None, eps: Any = None) -> Bound:
    return Bound((input, weight), {"normalized_shape": tuple(normalized_shape), "eps": eps})


def _bind_module(module: nn.RMSNorm, input: Any) -> Bound:
    return _bind(input, module.normalized_shape, eps=module.eps)


def _rms_norm(
    input: torch.Tensor,
    weight: torch.Tensor | None = None,
    *,
    normalized_shape: tuple[int, ...],
    eps: float | None = None,
) -> torch.Tensor:
    return F.rms_norm(input, normalized_shape, weight, eps)


def _decompose(builder: DecomposeBuilder, bound: Bound) -> Any:
    x, weight = bound.tensors
    dims = tuple(range(-len(bound.attrs["normalized_shape"]), 0))
    eps = bound.attrs["eps"]
    if eps is None:  # torch's default
        eps = torch.finfo(builder.dtype(x)).eps
    y = by_root_mean_square(builder, x, dims, eps, last=weight is None)
    return affine(builder, y, weight, None)


def _sample(rng: np.random.Generator) -> Sample:
    shape = random_rows(rng)
    normalized = shape[-int(rng.integers(1, 3)) :]
    attrs = {"normalized_shape": normalized, "eps": (None, 1e-6)[int(rng.integers(2))]}
    return Sample((shape, normalized), attrs)


register(
    OpSpec(
        name="rms_norm",
        family="norm",
        rule=Rule.DECOMPOSED,
        roles=("input", "weight"),
        targets=(
            ModuleTarget(nn.RMSNorm, _bind_module, {"weight": "weight"}),
            FunctionTarget(F.rms_norm, _bind),
            FunctionTarget(torch.rms_norm, _bind),
        ),
        float_kernel=_rms_norm,
        lower=lower_by_parts(_decompose),
        decompose=_decompose,
        march=limits.NOT_BERNOULLI,
        flops=normalization_flops,
        sample=_sample,
        doc="x / sqrt(mean(x * x) + eps) * weight over the last dimensions",
    )
)
