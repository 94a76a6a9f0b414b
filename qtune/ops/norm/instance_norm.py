"""instance_norm: decomposed into its documented parts, int16 inside (numerics.md section 3).

With running statistics in eval mode it is a batch norm.
"""

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

ROLES = ("input", "running_mean", "running_var", "weight", "bias", "num_batches_tracked")
_SPACE = {nn.InstanceNorm1d: 1, nn.InstanceNorm2d: 2, nn.InstanceNorm3d: 3}
"""Spatial dimensions; these modules take inputs without a batch dimension too."""


def _bind(
    input: Any,
    running_mean: Any = None,
    running_var: Any = None,
    weight: Any = None,
    bias: Any = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Bound:
    if use_input_stats and running_mean is not None:
        raise _updating("leave the running statistics out")
    attrs = {"running": not use_input_stats, "eps": float(eps), "space": None}
    return Bound((input, running_mean, running_var, weight, bias, None), attrs)


def _updating(remedy: str) -> NotImplementedError:
    return NotImplementedError(
        "instance_norm that updates running statistics has no integer form; call model.eval() "
        f"before prepare, or {remedy}"
    )


def _bind_torch(
    input: Any,
    weight: Any,
    bias: Any,
    running_mean: Any,
    running_var: Any,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> Bound:
    return _bind(input, running_mean, running_var, weight, bias, use_input_stats, momentum, eps)


def _bind_module(module: nn.Module, input: Any) -> Bound:
    m: Any = module
    tracks = m.running_mean is not None
    if tracks and module.training:
        raise _updating("make it with track_running_stats=False")
    space = next(n for cls, n in _SPACE.items() if isinstance(module, cls))
    attrs = {"running": tracks, "eps": float(m.eps), "space": space}
    return Bound((input, None, None, None, None, None), attrs)


def _instance_norm(
    input: torch.Tensor,
    running_mean: torch.Tensor | None = None,
    running_var: torch.Tensor | None = None,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    num_batches_tracked: torch.Tensor | None = None,
    *,
    running: bool = False,
    eps: float = 1e-5,
    space: int | None = None,
) -> torch.Tensor:
    single = space is not None and input.dim() == space + 1
    x = input.unsqueeze(0) if single else input
    statistics = (running_mean, running_var) if running else (None, None)
    y = F.instance_norm(x, *statistics, weight, bias, not running, 0.0, eps)
    return y.squeeze(0) if single else y


def _decompose(builder: DecomposeBuilder, bound: Bound) -> Any:
    x, mean, variance, weight, bias, _ = bound.tensors
    attrs, rank = bound.attrs, len(builder.shape(x))
    space = attrs["space"] or rank - 2
    if attrs["running"]:
        if rank == space + 1:
            raise NotImplementedError(
                "instance_norm with running statistics needs an input with a batch dimension; "
                "unsqueeze it"
            )
        # 0, not False: the part must not follow the model into training, as a batch norm does.
        options = {"training": 0, "momentum": 0.0, "eps": attrs["eps"]}
        operands = (x, mean, variance, weight, bias, None)
        return builder.call("batch_norm", operands, options, part="batch_norm")
    last = weight is None and bias is None
    y = standardized(builder, x, tuple(range(-space, 0)), attrs["eps"], last=last)
    return affine(builder, y, weight, bias, (-1, *[1] * space))


def _sample(rng: np.random.Generator) -> Sample:
    channels = int(rng.integers(1, 6))
    shape = random_map(rng, channels)
    vector = (channels,)
    attrs = {"running": False, "eps": 1e-5, "space": None}
    return Sample((shape, None, None, vector, vector if rng.integers(2) else None, None), attrs)


register(
    OpSpec(
        name="instance_norm",
        family="norm",
        rule=Rule.DECOMPOSED,
        roles=ROLES,
        targets=(
            *(
                ModuleTarget(cls, _bind_module, {role: role for role in ROLES[1:]})
                for cls in _SPACE
            ),
            FunctionTarget(F.instance_norm, _bind),
            FunctionTarget(torch.instance_norm, _bind_torch),
        ),
        float_kernel=_instance_norm,
        lower=lower_by_parts(_decompose),
        decompose=_decompose,
        march=limits.NOT_BERNOULLI,
        flops=normalization_flops,
        sample=_sample,
        doc="layer normalization of every channel's map; with running statistics a batch norm",
    )
)
