"""adaptive_avg_pool3d: averages of volumes to a given size, of planes in int16 first."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import nn

from qtune.ops.kernel import Builder, LowerCall
from qtune.ops.pool.adaptive_avg_pool2d import flops, lower_map
from qtune.ops.pool.limits import adaptive_march
from qtune.ops.pool.volumes import (
    decompose_average,
    depth_attrs,
    on_volumes,
    per_volume_axis,
    plane_attrs,
    sample_adaptive,
)
from qtune.ops.registry import register
from qtune.ops.spec import Bound, DecomposeBuilder, FunctionTarget, ModuleTarget, OpSpec, Rule


def _bind(input: Any, output_size: Any) -> Bound:
    return Bound((input,), per_volume_axis({"output_size": output_size}))


def _bind_module(module: nn.AdaptiveAvgPool3d, input: Any) -> Bound:
    return _bind(input, module.output_size)


def _lower(b: Builder, call: LowerCall) -> Any:
    plane = plane_attrs(call.attrs)["output_size"]
    depth = depth_attrs(call.attrs)["output_size"]
    return on_volumes(
        b,
        call,
        lambda value, shape: lower_map(b, value, shape, plane),
        lambda value, shape: lower_map(b, value, shape, depth),
    )


def _decompose(builder: DecomposeBuilder, bound: Bound) -> Any:
    plane, depth = plane_attrs(bound.attrs), depth_attrs(bound.attrs)
    return decompose_average(builder, bound, "adaptive_avg_pool2d", plane, depth)


register(
    OpSpec(
        name="adaptive_avg_pool3d",
        family="pool",
        rule=Rule.DECOMPOSED,
        roles=("input",),
        targets=(
            ModuleTarget(nn.AdaptiveAvgPool3d, _bind_module),
            FunctionTarget(F.adaptive_avg_pool3d, _bind),
        ),
        float_kernel=F.adaptive_avg_pool3d,
        lower=_lower,
        decompose=_decompose,
        march=adaptive_march(),
        flops=flops,
        sample=sample_adaptive,
        doc="averages of volumes to a given size; int16 inside",
    )
)
