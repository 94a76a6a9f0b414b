"""max_pool2d: window maxima; keeps the input's scale, the border is qmin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from qtune.arith_fast.pool import max_pool2d_held, output_size
from qtune.ops.kernel import (
    Attrs,
    Builder,
    ConvertContext,
    FastKernel,
    FloatNode,
    HbirKernel,
    KernelNode,
    LowerCall,
    QConst,
    QValue,
)
from qtune.ops.movement.moving import carry, initializer, one_scale
from qtune.ops.pool.limits import max_pool_march, window_flops
from qtune.ops.pool.spatial import fitted, on_maps
from qtune.ops.pool.windows import pair, stride_or
from qtune.ops.quant.codes import onnx_type
from qtune.ops.registry import register
from qtune.ops.spec import Bound, FunctionTarget, ModuleTarget, OpSpec, Rule, Sample

GEOMETRY = ("kernel_shape", "strides", "pads", "dilations")


def bind(
    input: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Bound:
    """The canonical call; sizes become pairs, a missing stride is the kernel size."""
    if return_indices:
        raise NotImplementedError("max_pool with return_indices=True has no integer form")
    attrs = {
        "kernel_size": pair(kernel_size),
        "stride": pair(stride_or(kernel_size, stride)),
        "padding": pair(padding),
        "dilation": pair(dilation),
        "ceil_mode": ceil_mode,
    }
    return Bound((input,), attrs)


def bind_module(module: Any, input: Any) -> Bound:
    """A call of nn.MaxPool2d (or 1d)."""
    return bind(
        input,
        module.kernel_size,
        module.stride,
        module.padding,
        module.dilation,
        module.ceil_mode,
        module.return_indices,
    )


def _lower(b: Builder, call: LowerCall) -> Any:
    return on_maps(b, call, 2, lambda value, shape: lower_map(b, value, shape, call.attrs))


def lower_map(b: Builder, value: Any, shape: Sequence[int], attrs: Attrs) -> Any:
    """MaxPool of a value [N, C, H, W]."""
    value, pads = fitted(b, value, shape, attrs)
    geometry = {
        "kernel_shape": attrs["kernel_size"],
        "strides": attrs["stride"],
        "pads": pads,
        "dilations": attrs["dilation"],
        "ceil_mode": int(attrs["ceil_mode"]),
    }
    return b.add("MaxPool", [value], geometry)


def _run_float(attrs: Attrs, x: torch.Tensor) -> torch.Tensor:
    kernel, stride, pads, dilation = (attrs[key] for key in GEOMETRY)
    return F.max_pool2d(x, kernel, stride, pads[:2], dilation, bool(attrs["ceil_mode"]))


def _convert(ctx: ConvertContext, node: FloatNode) -> Any:
    x = node.operands[0]
    if isinstance(x, QConst):
        one_scale(node, x)
        x = initializer(ctx, x)
    if not isinstance(x, QValue):
        attrs = dict(node.attrs)
        return carry(ctx, node, lambda value: ctx.add("MaxPool", [value], attrs))
    geometry = {key: node.attrs[key] for key in (*GEOMETRY, "ceil_mode")}
    attrs = {**geometry, "lo": x.dtype.qmin, "to": onnx_type(x.dtype)}
    return replace(x, value=ctx.add("QMaxPool", [x.value], attrs, domain="qtune"))


def _reference(attrs: Attrs, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    kernel, stride, pads, dilation = (attrs[key] for key in GEOMETRY)
    out = output_size(x.shape[2:], kernel, stride, pads, dilation, bool(attrs["ceil_mode"]))
    reach = [(out[i] - 1) * stride[i] + dilation[i] * (kernel[i] - 1) + 1 for i in range(2)]
    grow = [(pads[i], max(reach[i] - x.shape[2 + i] - pads[i], 0)) for i in range(2)]
    padded = np.pad(x, [(0, 0), (0, 0), *grow], constant_values=attrs["lo"])
    return _maxima(padded, kernel, stride, dilation, out)


def _maxima(
    x: np.ndarray[Any, Any],
    kernel: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    out: Sequence[int],
) -> np.ndarray[Any, Any]:
    rows, columns = (np.arange(out[i]) * stride[i] for i in range(2))
    taps = [
        x[:, :, rows[:, None] + i * dilation[0], columns + j * dilation[1]]
        for i in range(kernel[0])
        for j in range(kernel[1])
    ]
    return np.asarray(np.max(np.stack(taps), axis=0))


def _fast(node: KernelNode) -> FastKernel:
    kernel, stride, pads, dilation = (tuple(node.attrs[key]) for key in GEOMETRY)
    ceil_mode = bool(node.attrs["ceil_mode"])
    return lambda x: max_pool2d_held(x, kernel, stride, pads, dilation, ceil_mode)


def _sample(rng: np.random.Generator) -> Sample:
    kernel = tuple(int(v) for v in rng.integers(1, 4, 2))
    attrs = {
        "kernel_size": kernel,
        "stride": tuple(int(v) for v in rng.integers(1, 4, 2)),
        "padding": tuple(int(rng.integers(0, k // 2 + 1)) for k in kernel),
        "dilation": tuple(int(v) for v in rng.integers(1, 3, 2)),
        "ceil_mode": bool(rng.integers(2)),
    }
    shape = tuple(int(v) for v in (*rng.integers(1, 4, 2), *rng.integers(6, 11, 2)))
    return Sample((shape,), attrs)


register(
    OpSpec(
        name="max_pool2d",
        family="pool",
        rule=Rule.INPUT_SCALE,
        roles=("input",),
        targets=(
            ModuleTarget(nn.MaxPool2d, bind_module),
            FunctionTarget(F.max_pool2d, bind),
            FunctionTarget(torch.max_pool2d, bind),
        ),
        float_kernel=F.max_pool2d,
        lower=_lower,
        kernels=(
            HbirKernel("MaxPool", run_float=_run_float, convert=_convert),
            HbirKernel("QMaxPool", "qtune", reference=_reference, fast=_fast),
        ),
        march=max_pool_march(),
        flops=window_flops,
        sample=_sample,
        doc="maxima over windows",
    )
)
