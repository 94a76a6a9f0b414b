"""adaptive_avg_pool1d: adaptive_avg_pool2d of a map of height 1."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from qtune.ops.kernel import Builder, LowerCall
from qtune.ops.pool.adaptive_avg_pool2d import flops, lower_map
from qtune.ops.pool.limits import adaptive_march
from qtune.ops.pool.spatial import on_maps
from qtune.ops.pool.windows import single
from qtune.ops.registry import register
from qtune.ops.spec import Bound, FunctionTarget, ModuleTarget, OpSpec, Rule, Sample


def _bind(input: Any, output_size: Any) -> Bound:
    return Bound((input,), {"output_size": single(output_size)})


def _bind_module(module: nn.AdaptiveAvgPool1d, input: Any) -> Bound:
    return _bind(input, module.output_size)


def _lower(b: Builder, call: LowerCall) -> Any:
    size = (1, call.attrs["output_size"])
    return on_maps(b, call, 1, lambda value, shape: lower_map(b, value, shape, size))


def _sample(rng: np.random.Generator) -> Sample:
    shape = tuple(int(v) for v in rng.integers(1, 9, 3))
    return Sample((shape,), {"output_size": int(rng.integers(1, 9))})


register(
    OpSpec(
        name="adaptive_avg_pool1d",
        family="pool",
        rule=Rule.OWN_SCALE,
        roles=("input",),
        targets=(
            ModuleTarget(nn.AdaptiveAvgPool1d, _bind_module),
            FunctionTarget(F.adaptive_avg_pool1d, _bind),
        ),
        float_kernel=torch.adaptive_avg_pool1d,
        lower=_lower,
        march=adaptive_march(),
        flops=flops,
        sample=_sample,
        doc="averages of one axis to a given size",
    )
)
