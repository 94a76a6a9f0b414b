"""layer_norm: decomposed into its documented parts, int16 inside (numerics.md section 3)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from qtune.ops.elementwise import limits
from qtune.ops.norm.parts import (
    affine,
    lower_by_parts,
    normalization_flops,
    random_rows,
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
    input: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Bound:
    attrs = {"normalized_shape": tuple(normalized_shape), "eps": float(eps)}
    return Bound((input, weight, bias), attrs)


def _bind_torch(
    input: Any,
    normalized_shape: Any,
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Bound:
    return _bind(input, normalized_shape, weight, bias, eps)


def _bind_module(module: nn.LayerNorm, input: Any) -> Bound:
    return _bind(input, module.normalized_shape, eps=module.eps)


def _layer_norm(
    input: torch.Tensor,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    *,
    normalized_shape: tuple[int, ...],
    eps: float,
) -> torch.Tensor:
    return F.layer_norm(input, normalized_shape, weight, bias, eps)


def _decompose(builder: DecomposeBuilder, bound: Bound) -> Any:
    x, weight, bias = bound.tensors
    dims = tuple(range(-len(bound.attrs["normalized_shape"]), 0))
    last = weight is None and bias is None
    y = standardized(builder, x, dims, bound.attrs["eps"], last=last)
    return affine(builder, y, weight, bias)


def _sample(rng: np.random.Generator) -> Sample:
    shape = random_rows(rng)
    normalized = shape[-int(rng.integers(1, 3)) :]
    bias = normalized if rng.integers(2) else None
    attrs = {"normalized_shape": normalized, "eps": 1e-5}
    return Sample((shape, normalized, bias), attrs)


register(
    OpSpec(
        name="layer_norm",
        family="norm",
        rule=Rule.DECOMPOSED,
        roles=("input", "weight", "bias"),
        targets=(
            ModuleTarget(nn.LayerNorm, _bind_module, {"weight": "weight", "bias": "bias"}),
            FunctionTarget(F.layer_norm, _bind),
            FunctionTarget(torch.layer_norm, _bind_torch),
        ),
        float_kernel=_layer_norm,
        lower=lower_by_parts(_decompose),
        decompose=_decompose,
        march=limits.NOT_BERNOULLI,
        flops=normalization_flops,
        sample=_sample,
        doc="(x - mean) / sqrt(variance + eps) * weight + bias over the last dimensions",
    )
)
