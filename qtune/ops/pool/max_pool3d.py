"""max_pool3d: maxima over windows of volumes; keeps the input's scale."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from qtune.ops.kernel import Builder, LowerCall
from qtune.ops.pool.limits import max_pool_march, window_flops
from qtune.ops.pool.max_pool2d import lower_map
from qtune.ops.pool.volumes import (
    depth_attrs,
    on_volumes,
    per_volume_axis,
    plane_attrs,
    sample_windows,
)
from qtune.ops.pool.windows import stride_or
from qtune.ops.registry import register
from qtune.ops.spec import Bound, FunctionTarget, ModuleTarget, OpSpec, Rule


def _bind(
    input: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Bound:
    if return_indices:
        raise NotImplementedError("max_pool3d with return_indices=True has no integer form")
    attrs = {
        "kernel_size": kernel_size,
        "stride": stride_or(kernel_size, stride),
        "padding": padding,
        "dilation": dilation,
        "ceil_mode": ceil_mode,
    }
    return Bound((input,), per_volume_axis(attrs))


def _bind_module(module: nn.MaxPool3d, input: Any) -> Bound:
    return _bind(
        input,
        module.kernel_size,
        module.stride,
        module.padding,
        module.dilation,
        module.ceil_mode,
        module.return_indices,
    )


def _lower(b: Builder, call: LowerCall) -> Any:
    plane, depth = plane_attrs(call.attrs), depth_attrs(call.attrs)
    return on_volumes(
        b,
        call,
        lambda value, shape: lower_map(b, value, shape, plane),
        lambda value, shape: lower_map(b, value, shape, depth),
    )


register(
    OpSpec(
        name="max_pool3d",
        family="pool",
        rule=Rule.INPUT_SCALE,
        roles=("input",),
        targets=(
            ModuleTarget(nn.MaxPool3d, _bind_module),
            FunctionTarget(F.max_pool3d, _bind),
            FunctionTarget(torch.max_pool3d, _bind),
        ),
        float_kernel=F.max_pool3d,
        lower=_lower,
        march=max_pool_march(),
        flops=window_flops,
        sample=lambda rng: sample_windows(rng, dilated=True),
        doc="maxima over windows of volumes",
    )
)
