"""avg_pool1d: avg_pool2d of a map of height 1."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from qtune.ops.kernel import Attrs, Builder, LowerCall
from qtune.ops.pool.avg_pool2d import lower_map
from qtune.ops.pool.limits import avg_pool_march, window_flops
from qtune.ops.pool.spatial import on_maps
from qtune.ops.pool.windows import single, stride_or
from qtune.ops.registry import register
from qtune.ops.spec import Bound, FunctionTarget, ModuleTarget, OpSpec, Rule, Sample


def _bind(
    input: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Bound:
    attrs = {
        "kernel_size": single(kernel_size),
        "stride": single(stride_or(kernel_size, stride)),
        "padding": single(padding),
        "ceil_mode": ceil_mode,
        "count_include_pad": count_include_pad,
    }
    return Bound((input,), attrs)


def _bind_module(module: nn.AvgPool1d, input: Any) -> Bound:
    return _bind(
        input,
        module.kernel_size,
        module.stride,
        module.padding,
        module.ceil_mode,
        module.count_include_pad,
    )


def as_map(attrs: Attrs) -> dict[str, Any]:
    """The attributes of a 1-d pool for a map of height 1."""
    neutral = {"kernel_size": 1, "stride": 1, "padding": 0, "dilation": 1}
    wide = {key: (neutral[key], value) for key, value in attrs.items() if key in neutral}
    return {**attrs, **wide}


def _lower(b: Builder, call: LowerCall) -> Any:
    attrs = {**as_map(call.attrs), "divisor_override": None}
    return on_maps(b, call, 1, lambda value, shape: lower_map(b, value, shape, attrs))


def _sample(rng: np.random.Generator) -> Sample:
    kernel = int(rng.integers(1, 5))
    attrs = {
        "kernel_size": kernel,
        "stride": int(rng.integers(1, 4)),
        "padding": int(rng.integers(0, kernel // 2 + 1)),
        "ceil_mode": bool(rng.integers(2)),
        "count_include_pad": bool(rng.integers(2)),
    }
    return Sample((tuple(int(v) for v in rng.integers(5, 9, 3)),), attrs)


register(
    OpSpec(
        name="avg_pool1d",
        family="pool",
        rule=Rule.OWN_SCALE,
        roles=("input",),
        targets=(
            ModuleTarget(nn.AvgPool1d, _bind_module),
            FunctionTarget(torch.avg_pool1d, _bind),
        ),
        float_kernel=torch.avg_pool1d,
        lower=_lower,
        march=avg_pool_march(),
        flops=window_flops,
        sample=_sample,
        doc="averages over windows of one axis",
    )
)
