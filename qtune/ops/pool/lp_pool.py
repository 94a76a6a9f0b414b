"""lp_pool1d, lp_pool2d: power averages over windows, made of other operators; int16 inside."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from qtune.dtype import qint16
from qtune.ops.composed import lower_by_parts
from qtune.ops.elementwise import limits
from qtune.ops.pool.limits import window_flops
from qtune.ops.pool.windows import pair, stride_or
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
    input: Any, norm_type: Any, kernel_size: Any, stride: Any = None, ceil_mode: bool = False
) -> Bound:
    if float(norm_type) not in (1.0, 2.0):
        raise NotImplementedError(
            f"lp_pool has an integer form for norm_type 1 and 2, got {norm_type}. Write it with "
            "pow and avg_pool, or keep it outside the quantized region"
        )
    attrs = {
        "norm_type": float(norm_type),
        "kernel_size": pair(kernel_size),
        "stride": pair(stride_or(kernel_size, stride)),
        "ceil_mode": bool(ceil_mode),
    }
    return Bound((input,), attrs)


def _bind_rows(
    input: Any, norm_type: Any, kernel_size: Any, stride: Any = None, ceil_mode: bool = False
) -> Bound:
    size, step = _one(kernel_size), _one(stride_or(kernel_size, stride))
    return _bind(input, norm_type, (1, size), (1, step), ceil_mode)


def _one(value: Any) -> int:
    return int(value if isinstance(value, int) else value[0])


def _bind_module(module: nn.LPPool2d, input: Any) -> Bound:
    return _bind(input, module.norm_type, module.kernel_size, module.stride, bool(module.ceil_mode))


def _bind_row_module(module: nn.LPPool1d, input: Any) -> Bound:
    return _bind_rows(
        input, module.norm_type, module.kernel_size, module.stride, bool(module.ceil_mode)
    )


def _float_kernel(
    input: torch.Tensor,
    *,
    norm_type: float,
    kernel_size: tuple[int, int],
    stride: tuple[int, int],
    ceil_mode: bool,
) -> torch.Tensor:
    if input.dim() == 2:  # lp_pool1d without a batch
        return F.lp_pool2d(input[None], norm_type, kernel_size, stride, ceil_mode)[0]
    return F.lp_pool2d(input, norm_type, kernel_size, stride, ceil_mode)


def _decompose(builder: DecomposeBuilder, bound: Bound) -> Any:
    (x,), attrs = bound.tensors, bound.attrs
    order = attrs["norm_type"]
    rows_only = len(builder.shape(x)) == 2  # lp_pool1d without a batch
    if rows_only:
        x = builder.call("unsqueeze", (x,), {"dim": 0}, part="batch")
    window = {
        **{key: attrs[key] for key in ("kernel_size", "stride", "ceil_mode")},
        "padding": (0, 0),
        "count_include_pad": True,
        "divisor_override": None,
    }
    count = float(math.prod(attrs["kernel_size"]))
    if order == 2:
        x = builder.call("mul", (x, x), part="square", forced_dtype=qint16)
    mean = builder.call("avg_pool2d", (x,), window, part="mean", forced_dtype=qint16)
    if order == 1:
        result = builder.call("mul", (mean, count), part="sum")
    else:
        total = builder.call("mul", (mean, count), part="sum", forced_dtype=qint16)
        result = builder.call("sqrt", (total,), part="sqrt")
    return builder.call("squeeze", (result,), {"dim": (0,)}, part="one") if rows_only else result


def _sample(rng: np.random.Generator) -> Sample:
    shape = tuple(int(v) for v in (*rng.integers(1, 4, 2), *rng.integers(5, 11, 2)))
    attrs = {
        "norm_type": float(rng.integers(1, 3)),
        "kernel_size": tuple(int(v) for v in rng.integers(1, 5, 2)),
        "stride": tuple(int(v) for v in rng.integers(1, 4, 2)),
        "ceil_mode": False,
    }
    return Sample((shape,), attrs)


register(
    OpSpec(
        name="lp_pool",
        family="pool",
        rule=Rule.DECOMPOSED,
        roles=("input",),
        targets=(
            ModuleTarget(nn.LPPool2d, _bind_module),
            ModuleTarget(nn.LPPool1d, _bind_row_module),
            FunctionTarget(F.lp_pool2d, _bind),
            FunctionTarget(F.lp_pool1d, _bind_rows),
        ),
        float_kernel=_float_kernel,
        lower=lower_by_parts(_decompose),
        decompose=_decompose,
        march=limits.NOT_BERNOULLI,
        flops=window_flops,
        sample=_sample,
        doc="square root of the sum of squares over windows (or the sum, norm_type 1)",
    )
)
