"""adaptive_avg_pool2d: averages to a given size with an own scale, one multiplier per count."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from qtune.ops.kernel import Attrs, Builder, ConvertContext, FloatNode, HbirKernel, LowerCall
from qtune.ops.pool.averaging import average, float_kernel_of
from qtune.ops.pool.limits import adaptive_march
from qtune.ops.pool.spatial import on_maps
from qtune.ops.pool.windows import Windows, adaptive_windows, pair
from qtune.ops.reduce.stepwise import reduced
from qtune.ops.registry import register
from qtune.ops.spec import (
    Bound,
    DecomposeBuilder,
    FunctionTarget,
    ModuleTarget,
    OpSpec,
    Rule,
    Sample,
    Steps,
)


def _bind(input: Any, output_size: Any) -> Bound:
    return Bound((input,), {"output_size": pair(output_size)})


def _bind_module(module: nn.AdaptiveAvgPool2d, input: Any) -> Bound:
    return _bind(input, module.output_size)


def lower_map(b: Builder, value: Any, shape: Sequence[int], output_size: Sequence[Any]) -> Any:
    """GlobalAveragePool to 1 x 1; else AdaptiveAvgPool with its averaging matrices."""
    height, width = (
        size if wanted is None else int(wanted)
        for size, wanted in zip(shape[2:], output_size, strict=True)
    )
    if (height, width) == (1, 1):
        return b.add("GlobalAveragePool", [value])
    rows = averaging_matrix(adaptive_windows(shape[2], height), shape[2])
    columns = averaging_matrix(adaptive_windows(shape[3], width), shape[3]).T
    inputs = [value, b.constant(rows, "rows"), b.constant(columns, "columns")]
    return b.add("AdaptiveAvgPool", inputs, {"output_size": (height, width)}, domain="qtune")


def averaging_matrix(windows: Windows, size: int) -> np.ndarray[Any, Any]:
    """float32 [out, in]: row o holds ``1 / count`` inside window o."""
    index = np.arange(size)
    inside = (index >= windows.start[:, None]) & (index < windows.end[:, None])
    return (inside / windows.count[:, None]).astype(np.float32)


def _lower(b: Builder, call: LowerCall) -> Any:
    size = call.attrs["output_size"]
    return on_maps(b, call, 2, lambda value, shape: lower_map(b, value, shape, size))


def _run_global(attrs: Attrs, x: torch.Tensor) -> torch.Tensor:
    return F.adaptive_avg_pool2d(x, 1)


def _run_adaptive(attrs: Attrs, x: torch.Tensor, *matrices: torch.Tensor) -> torch.Tensor:
    return F.adaptive_avg_pool2d(x, tuple(attrs["output_size"]))


def _layout(node: FloatNode) -> tuple[Windows, Windows, int | None]:
    height, width = (node.input_shapes[0] or ())[2:]
    out = node.attrs.get("output_size", (1, 1))
    return adaptive_windows(height, out[0]), adaptive_windows(width, out[1]), None


def _convert(ctx: ConvertContext, node: FloatNode) -> Any:
    return average(ctx, node, _layout)


def flops(attrs: Attrs, inputs: Sequence[Any], output: Sequence[int]) -> int:
    """One addition for each element of the input."""
    return prod(inputs[0])


def _sample(rng: np.random.Generator) -> Sample:
    shape = tuple(int(v) for v in (*rng.integers(1, 4, 2), *rng.integers(1, 9, 2)))
    height, width = (int(v) for v in rng.integers(1, 9, 2))
    size = [(1, 1), (height, width), (height, None), (None, 1)][int(rng.integers(4))]
    return Sample((shape,), {"output_size": size})


def _is_global(attrs: Attrs, shapes: Sequence[Any]) -> bool:
    return tuple(attrs["output_size"]) == (1, 1)


def _means(builder: DecomposeBuilder, bound: Bound) -> Any:
    return reduced(builder, "mean", bound.tensors[0], (-2, -1), part="mean", forced_dtype=None)


register(
    OpSpec(
        name="adaptive_avg_pool2d",
        family="pool",
        rule=Rule.OWN_SCALE,
        roles=("input",),
        targets=(
            ModuleTarget(nn.AdaptiveAvgPool2d, _bind_module),
            FunctionTarget(F.adaptive_avg_pool2d, _bind),
        ),
        float_kernel=F.adaptive_avg_pool2d,
        lower=_lower,
        kernels=(
            HbirKernel("GlobalAveragePool", run_float=_run_global, convert=_convert),
            float_kernel_of("AdaptiveAvgPool", _run_adaptive, _layout),
        ),
        march=adaptive_march(),
        flops=flops,
        steps=Steps(_is_global, _means),
        sample=_sample,
        doc="averages to a given size",
    )
)
