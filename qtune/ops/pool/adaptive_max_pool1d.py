"""adaptive_max_pool1d: adaptive_max_pool2d of a map of height 1."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch.nn.functional as F
from torch import nn

from qtune.ops.kernel import Builder, LowerCall
from qtune.ops.pool.adaptive_avg_pool2d import flops
from qtune.ops.pool.adaptive_max_pool2d import lower_map
from qtune.ops.pool.spatial import on_maps
from qtune.ops.pool.windows import single
from qtune.ops.registry import register
from qtune.ops.spec import Bound, FunctionTarget, ModuleTarget, OpSpec, Rule, Sample


def _bind(input: Any, output_size: Any, return_indices: bool = False) -> Bound:
    if return_indices:
        raise NotImplementedError("adaptive_max_pool1d with return_indices=True")
    return Bound((input,), {"output_size": single(output_size)})


def _bind_module(module: nn.AdaptiveMaxPool1d, input: Any) -> Bound:
    return _bind(input, module.output_size, module.return_indices)


def _lower(b: Builder, call: LowerCall) -> Any:
    size = (1, call.attrs["output_size"])
    return on_maps(b, call, 1, lambda value, shape: lower_map(b, value, shape, size))


def _sample(rng: np.random.Generator) -> Sample:
    shape = tuple(int(v) for v in rng.integers(1, 9, 3))
    return Sample((shape,), {"output_size": int(rng.integers(1, 9))})


register(
    OpSpec(
        name="adaptive_max_pool1d",
        family="pool",
        rule=Rule.INPUT_SCALE,
        roles=("input",),
        targets=(
            ModuleTarget(nn.AdaptiveMaxPool1d, _bind_module),
            FunctionTarget(F.adaptive_max_pool1d, _bind),
        ),
        float_kernel=F.adaptive_max_pool1d,
        lower=_lower,
        flops=flops,
        sample=_sample,
        doc="maxima of one axis to a given size",
    )
)
