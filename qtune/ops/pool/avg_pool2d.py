"""avg_pool2d, avg_pool1d: window averages with an own scale, one multiplier per count."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from qtune.ops.kernel import Attrs, Builder, ConvertContext, FloatNode, HbirKernel, LowerCall
from qtune.ops.pool.averaging import average, float_kernel_of
from qtune.ops.pool.limits import avg_pool_march, window_flops
from qtune.ops.pool.spatial import fitted, on_maps
from qtune.ops.pool.windows import Windows, end_pads, pair, stride_or, strided_windows
from qtune.ops.registry import register
from qtune.ops.spec import Bound, FunctionTarget, ModuleTarget, OpSpec, Rule, Sample


def bind(
    input: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: Any = None,
) -> Bound:
    """The canonical call; sizes become pairs, a missing stride is the kernel size."""
    attrs = {
        "kernel_size": pair(kernel_size),
        "stride": pair(stride_or(kernel_size, stride)),
        "padding": pair(padding),
        "ceil_mode": ceil_mode,
        "count_include_pad": count_include_pad,
        "divisor_override": divisor_override,
    }
    return Bound((input,), attrs)


def _bind_module(module: nn.AvgPool2d, input: Any) -> Bound:
    return bind(
        input,
        module.kernel_size,
        module.stride,
        module.padding,
        module.ceil_mode,
        module.count_include_pad,
        module.divisor_override,
    )


def lower_map(b: Builder, value: Any, shape: Sequence[int], attrs: Attrs) -> Any:
    """AveragePool of a value [N, C, H, W]; with a divisor of its own, AvgPoolDivisor."""
    geometry = {"kernel_shape": attrs["kernel_size"], "strides": attrs["stride"]}
    if attrs["divisor_override"] is None:
        value, geometry["pads"] = fitted(b, value, shape, attrs)
        flags = {key: int(attrs[key]) for key in ("ceil_mode", "count_include_pad")}
        return b.add("AveragePool", [value], {**geometry, **flags})
    geometry["pads"] = tuple(attrs["padding"]) + end_pads(shape[2:], attrs)
    divisor = {"divisor": int(attrs["divisor_override"])}
    return b.add("AvgPoolDivisor", [value], {**geometry, **divisor}, domain="qtune")


def _lower(b: Builder, call: LowerCall) -> Any:
    return on_maps(b, call, 2, lambda value, shape: lower_map(b, value, shape, call.attrs))


def _run_average(attrs: Attrs, x: torch.Tensor) -> torch.Tensor:
    kernel, stride, pads = (attrs[key] for key in ("kernel_shape", "strides", "pads"))
    ceil_mode, include = (bool(attrs.get(key, 0)) for key in ("ceil_mode", "count_include_pad"))
    return F.avg_pool2d(x, kernel, stride, pads[:2], ceil_mode, include)


def _run_divisor(attrs: Attrs, x: torch.Tensor) -> torch.Tensor:
    top, left, bottom, right = attrs["pads"]
    padded = F.pad(x, (left, right, top, bottom))
    kernel, stride = attrs["kernel_shape"], attrs["strides"]
    return F.avg_pool2d(padded, kernel, stride, divisor_override=attrs["divisor"])


def _average_layout(node: FloatNode) -> tuple[Windows, Windows, int | None]:
    attrs, shape = node.attrs, node.input_shapes[0] or ()
    pads, ceil_mode = attrs["pads"], bool(attrs.get("ceil_mode", 0))
    include = bool(attrs.get("count_include_pad", 0))
    rows, columns = (
        strided_windows(
            shape[2 + axis],
            attrs["kernel_shape"][axis],
            attrs["strides"][axis],
            pads[axis],
            ceil_mode=ceil_mode,
            count_pad=include,
        )
        for axis in range(2)
    )
    return rows, columns, None


def _divisor_layout(node: FloatNode) -> tuple[Windows, Windows, int | None]:
    """Windows of an AvgPoolDivisor; its end pads may differ from its begin pads."""
    attrs, shape = node.attrs, node.input_shapes[0] or ()
    found = []
    for axis in range(2):
        size, begin, end = shape[2 + axis], attrs["pads"][axis], attrs["pads"][axis + 2]
        kernel, stride = attrs["kernel_shape"][axis], attrs["strides"][axis]
        start = np.arange((size + begin + end - kernel) // stride + 1) * stride - begin
        inside = np.maximum(start, 0), np.minimum(start + kernel, size)
        found.append(Windows(*inside, np.full_like(start, kernel)))
    return found[0], found[1], int(attrs["divisor"])


def _convert_average(ctx: ConvertContext, node: FloatNode) -> Any:
    return average(ctx, node, _average_layout)


def _sample(rng: np.random.Generator) -> Sample:
    kernel = tuple(int(v) for v in rng.integers(1, 5, 2))
    attrs = {
        "kernel_size": kernel,
        "stride": tuple(int(v) for v in rng.integers(1, 4, 2)),
        "padding": tuple(int(rng.integers(0, k // 2 + 1)) for k in kernel),
        "ceil_mode": bool(rng.integers(2)),
        "count_include_pad": bool(rng.integers(2)),
        "divisor_override": [None, None, int(rng.integers(1, 9))][int(rng.integers(3))],
    }
    shape = tuple(int(v) for v in (*rng.integers(1, 4, 2), *rng.integers(5, 11, 2)))
    return Sample((shape,), attrs)


register(
    OpSpec(
        name="avg_pool2d",
        family="pool",
        rule=Rule.OWN_SCALE,
        roles=("input",),
        targets=(
            ModuleTarget(nn.AvgPool2d, _bind_module),
            FunctionTarget(F.avg_pool2d, bind),
        ),
        float_kernel=F.avg_pool2d,
        lower=_lower,
        kernels=(
            HbirKernel("AveragePool", run_float=_run_average, convert=_convert_average),
            float_kernel_of("AvgPoolDivisor", _run_divisor, _divisor_layout),
        ),
        march=avg_pool_march(),
        flops=window_flops,
        sample=_sample,
        doc="averages over windows",
    )
)
