"""avg_pool3d: averages over windows of volumes, of planes in int16 first, then of the depth."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch.nn.functional as F
from torch import nn

from qtune.ops.kernel import Attrs, Builder, LowerCall
from qtune.ops.pool.avg_pool2d import lower_map
from qtune.ops.pool.limits import avg_pool_march, window_flops
from qtune.ops.pool.volumes import (
    decompose_average,
    depth_attrs,
    on_volumes,
    per_volume_axis,
    plane_attrs,
    sample_windows,
)
from qtune.ops.pool.windows import stride_or
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
    input: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: Any = None,
) -> Bound:
    attrs = {
        "kernel_size": kernel_size,
        "stride": stride_or(kernel_size, stride),
        "padding": padding,
        "ceil_mode": ceil_mode,
        "count_include_pad": count_include_pad,
        "divisor_override": divisor_override,
    }
    return Bound((input,), per_volume_axis(attrs))


def _bind_module(module: nn.AvgPool3d, input: Any) -> Bound:
    return _bind(
        input,
        module.kernel_size,
        module.stride,
        module.padding,
        module.ceil_mode,
        module.count_include_pad,
        module.divisor_override,
    )


def _parts(attrs: Attrs) -> tuple[dict[str, Any], dict[str, Any]]:
    """Attributes of both pools; a divisor of its own divides once."""
    plane = plane_attrs(attrs)
    if attrs["divisor_override"] is not None:
        plane["divisor_override"] = 1
    return plane, depth_attrs(attrs)


def _lower(b: Builder, call: LowerCall) -> Any:
    plane, depth = _parts(call.attrs)
    return on_volumes(
        b,
        call,
        lambda value, shape: lower_map(b, value, shape, plane),
        lambda value, shape: lower_map(b, value, shape, depth),
    )


def _decompose(builder: DecomposeBuilder, bound: Bound) -> Any:
    return decompose_average(builder, bound, "avg_pool2d", *_parts(bound.attrs))


def _sample(rng: np.random.Generator) -> Sample:
    sample = sample_windows(rng, dilated=False)
    divisor = [None, None, int(rng.integers(1, 9))][int(rng.integers(3))]
    more = {"count_include_pad": bool(rng.integers(2)), "divisor_override": divisor}
    return Sample(sample.shapes, {**sample.attrs, **more})


register(
    OpSpec(
        name="avg_pool3d",
        family="pool",
        rule=Rule.DECOMPOSED,
        roles=("input",),
        targets=(
            ModuleTarget(nn.AvgPool3d, _bind_module),
            FunctionTarget(F.avg_pool3d, _bind),
        ),
        float_kernel=F.avg_pool3d,
        lower=_lower,
        decompose=_decompose,
        march=avg_pool_march(),
        flops=window_flops,
        sample=_sample,
        doc="averages over windows of volumes; int16 inside",
    )
)
