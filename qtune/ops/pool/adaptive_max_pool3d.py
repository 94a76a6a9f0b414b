"""adaptive_max_pool3d: maxima of volumes to a given size; keeps the input's scale."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import nn

from qtune.ops.kernel import Builder, LowerCall
from qtune.ops.pool.adaptive_avg_pool2d import flops
from qtune.ops.pool.adaptive_max_pool2d import lower_map
from qtune.ops.pool.volumes import (
    depth_attrs,
    on_volumes,
    per_volume_axis,
    plane_attrs,
    sample_adaptive,
)
from qtune.ops.registry import register
from qtune.ops.spec import Bound, FunctionTarget, ModuleTarget, OpSpec, Rule


def _bind(input: Any, output_size: Any, return_indices: bool = False) -> Bound:
    if return_indices:
        raise NotImplementedError("adaptive_max_pool3d with return_indices=True")
    return Bound((input,), per_volume_axis({"output_size": output_size}))


def _bind_module(module: nn.AdaptiveMaxPool3d, input: Any) -> Bound:
    return _bind(input, module.output_size, module.return_indices)


def _lower(b: Builder, call: LowerCall) -> Any:
    plane = plane_attrs(call.attrs)["output_size"]
    depth = depth_attrs(call.attrs)["output_size"]
    return on_volumes(
        b,
        call,
        lambda value, shape: lower_map(b, value, shape, plane),
        lambda value, shape: lower_map(b, value, shape, depth),
    )


register(
    OpSpec(
        name="adaptive_max_pool3d",
        family="pool",
        rule=Rule.INPUT_SCALE,
        roles=("input",),
        targets=(
            ModuleTarget(nn.AdaptiveMaxPool3d, _bind_module),
            FunctionTarget(F.adaptive_max_pool3d, _bind),
        ),
        float_kernel=F.adaptive_max_pool3d,
        lower=_lower,
        flops=flops,
        sample=sample_adaptive,
        doc="maxima of volumes to a given size",
    )
)
