"""local_response_norm: square, mean over near channels, a power as a table; int16 inside."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from qtune.dtype import qint16
from qtune.ops.elementwise import limits
from qtune.ops.norm.parts import lower_by_parts, normalization_flops
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


def _bind(input: Any, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> Bound:
    attrs = {"size": int(size), "alpha": float(alpha), "beta": float(beta), "k": float(k)}
    return Bound((input,), attrs)


def _bind_module(module: nn.LocalResponseNorm, input: Any) -> Bound:
    return _bind(input, module.size, module.alpha, module.beta, module.k)


def _float_kernel(
    input: torch.Tensor, *, size: int, alpha: float, beta: float, k: float
) -> torch.Tensor:
    return F.local_response_norm(input, size, alpha, beta, k)


def _decompose(builder: DecomposeBuilder, bound: Bound) -> Any:
    (x,), attrs = bound.tensors, bound.attrs
    rank, size = len(builder.shape(x)), attrs["size"]
    if rank not in (3, 4):
        raise NotImplementedError(
            f"local_response_norm has an integer form for rows [N, C, L] and maps [N, C, H, W], "
            f"got {rank} dimensions"
        )
    square = builder.call("mul", (x, x), part="square", forced_dtype=qint16)
    # The channels become the last dimension, so that their windows are those of a pool.
    last = {"dims": (0, *range(2, rank), 1)}
    back = {"dims": (0, rank - 1, *range(1, rank - 1))}
    value = builder.call("permute", (square,), last, part="channels_last")
    border = {"pad": (size // 2, (size - 1) // 2), "mode": "constant", "value": 0.0}
    value = builder.call("pad", (value,), border, part="border")
    value = builder.call("avg_pool2d", (value,), _window(size), part="mean", forced_dtype=qint16)
    value = builder.call("permute", (value,), back, part="channels_first")
    value = builder.call("mul", (value, attrs["alpha"]), part="alpha", forced_dtype=qint16)
    value = builder.call("add", (value, attrs["k"]), part="k", forced_dtype=qint16)
    power = {"exponent": -attrs["beta"]}
    value = builder.call("power_to", (value,), power, part="power", forced_dtype=qint16)
    return builder.call("mul", (x, value), part="mul")


def _window(size: int) -> dict[str, Any]:
    return {
        "kernel_size": (1, size),
        "stride": (1, 1),
        "padding": (0, 0),
        "ceil_mode": False,
        "count_include_pad": True,
        "divisor_override": None,
    }


def _sample(rng: np.random.Generator) -> Sample:
    shape = tuple(int(v) for v in rng.integers(2, 7, int(rng.integers(3, 5))))
    attrs = {"size": int(rng.integers(1, 5)), "alpha": 0.5, "beta": 0.75, "k": 1.0}
    return Sample((shape,), attrs)


register(
    OpSpec(
        name="local_response_norm",
        family="norm",
        rule=Rule.DECOMPOSED,
        roles=("input",),
        targets=(
            ModuleTarget(nn.LocalResponseNorm, _bind_module),
            FunctionTarget(F.local_response_norm, _bind),
        ),
        float_kernel=_float_kernel,
        lower=lower_by_parts(_decompose),
        decompose=_decompose,
        march=limits.NOT_BERNOULLI,
        flops=normalization_flops,
        sample=_sample,
        doc="x / (k + alpha * mean of squares of neighbouring channels) ** beta",
    )
)
