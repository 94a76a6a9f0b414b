"""max_pool1d: max_pool2d of a map of height 1."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from qtune.ops.kernel import Builder, LowerCall
from qtune.ops.pool.avg_pool1d import as_map
from qtune.ops.pool.limits import max_pool_march, window_flops
from qtune.ops.pool.max_pool2d import lower_map
from qtune.ops.pool.spatial import on_maps
from qtune.ops.pool.windows import single, stride_or
from qtune.ops.registry import register
from qtune.ops.spec import Bound, FunctionTarget, ModuleTarget, OpSpec, Rule, Sample


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
        raise NotImplementedError("max_pool with return_indices=True has no integer form")
    attrs = {
        "kernel_size": single(kernel_size),
        "stride": single(stride_or(kernel_size, stride)),
        "padding": single(padding),
        "dilation": single(dilation),
        "ceil_mode": ceil_mode,
    }
    return Bound((input,), attrs)


def _bind_module(module: nn.MaxPool1d, input: Any) -> Bound:
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
    return on_maps(b, call, 1, lambda value, shape: lower_map(b, value, shape, as_map(call.attrs)))


def _sample(rng: np.random.Generator) -> Sample:
    kernel = int(rng.integers(1, 4))
    attrs = {
        "kernel_size": kernel,
        "stride": int(rng.integers(1, 4)),
        "padding": int(rng.integers(0, kernel // 2 + 1)),
        "dilation": int(rng.integers(1, 3)),
        "ceil_mode": bool(rng.integers(2)),
    }
    return Sample((tuple(int(v) for v in rng.integers(6, 9, 3)),), attrs)


register(
    OpSpec(
        name="max_pool1d",
        family="pool",
        rule=Rule.INPUT_SCALE,
        roles=("input",),
        targets=(
            ModuleTarget(nn.MaxPool1d, _bind_module),
            FunctionTarget(F.max_pool1d, _bind),
            FunctionTarget(torch.max_pool1d, _bind),
        ),
        float_kernel=F.max_pool1d,
        lower=_lower,
        march=max_pool_march(),
        flops=window_flops,
        sample=_sample,
        doc="maxima over windows of one axis",
    )
)
