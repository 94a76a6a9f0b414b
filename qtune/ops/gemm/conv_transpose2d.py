"""conv_transpose2d: transposed convolution, one weight scale per real output channel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from qtune.errors import ExportError
from qtune.ops.gemm import limits, reference
from qtune.ops.gemm.channels import channel_view
from qtune.ops.gemm.fast import fast_conv_transpose
from qtune.ops.gemm.geometry import Ints, per_axis, split_pads, transposed_size
from qtune.ops.gemm.kernels import integer_kernels
from qtune.ops.gemm.pending import GemmPending, constant_weight, optional_bias, quantized_input
from qtune.ops.gemm.samples import sample_conv_transpose
from qtune.ops.kernel import (
    Builder,
    ConvertContext,
    FloatNode,
    HbirKernel,
    LowerCall,
    Operand,
    QConst,
    Value,
)
from qtune.ops.registry import register
from qtune.ops.spec import Bound, FunctionTarget, FuseRole, ModuleTarget, OpSpec, Rule

_RANK = 2


def _attrs(
    stride: Any, padding: Any, output_padding: Any, groups: int, dilation: Any, output_size: Any
) -> dict[str, Any]:
    return {
        "stride": per_axis(stride, _RANK),
        "padding": per_axis(padding, _RANK),
        "output_padding": per_axis(output_padding, _RANK),
        "groups": groups,
        "dilation": per_axis(dilation, _RANK),
        "output_size": None if output_size is None else tuple(output_size)[-_RANK:],
    }


def _bind_module(module: nn.Module, input: Any, output_size: Any = None) -> Bound:
    m: Any = module
    attrs = _attrs(m.stride, m.padding, m.output_padding, m.groups, m.dilation, output_size)
    return Bound((input, None, None), attrs)


def _bind(
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Bound:
    attrs = _attrs(stride, padding, output_padding, groups, dilation, None)
    return Bound((input, weight, bias), attrs)


def _output_padding(attrs: Mapping[str, Any], size: Ints, kernel: Ints) -> Ints:
    """The extra rows and columns at the end; from ``output_size`` where the call gives one."""
    if attrs.get("output_size") is None:
        return tuple(attrs["output_padding"])
    plain = transposed_size(size, kernel, attrs, (0,) * _RANK)
    return tuple(int(want) - n for want, n in zip(attrs["output_size"], plain, strict=True))


def _float_kernel(
    input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, **attrs: Any
) -> torch.Tensor:
    extra = _output_padding(attrs, tuple(input.shape[2:]), tuple(weight.shape[2:]))
    return F.conv_transpose2d(
        input,
        weight,
        bias,
        attrs["stride"],
        attrs["padding"],
        extra,
        attrs["groups"],
        attrs["dilation"],
    )


def _lower(b: Builder, call: LowerCall) -> Value:
    x, weight, bias = call.operands
    attrs, data, kernel = call.attrs, call.input_shapes[0] or (), (call.input_shapes[1] or ())[2:]
    if len(data) != _RANK + 2:
        raise ExportError(
            f"{call.name}: a transposed convolution without batch axis has no HBIR form; "
            "give the model inputs with a batch dimension"
        )
    onnx_attrs = {
        "strides": attrs["stride"],
        "pads": (*attrs["padding"], *attrs["padding"]),
        "output_padding": _output_padding(attrs, data[2:], kernel),
        "dilations": attrs["dilation"],
        "group": attrs["groups"],
        "kernel_shape": kernel,
    }
    operands = [x, weight] if bias is None else [x, weight, bias]
    return b.add("ConvTranspose", operands, onnx_attrs)


def _onnx_attrs(attrs: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "strides": tuple(attrs.get("strides") or (1,) * _RANK),
        "pads": tuple(attrs.get("pads") or (0,) * (2 * _RANK)),
        "output_padding": tuple(attrs.get("output_padding") or (0,) * _RANK),
        "dilations": tuple(attrs.get("dilations") or (1,) * _RANK),
        "group": int(attrs.get("group", 1)),
    }


def _run_float(
    attrs: Mapping[str, Any],
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    node = _onnx_attrs(attrs)
    begin, end = split_pads(node["pads"])
    # torch knows one padding per axis: a smaller one behind is output padding.
    extra = tuple(o + b - e for o, b, e in zip(node["output_padding"], begin, end, strict=True))
    return F.conv_transpose2d(
        x, weight, bias, node["strides"], begin, extra, node["group"], node["dilations"]
    )


def _convert(ctx: ConvertContext, node: FloatNode) -> Operand:
    weight = constant_weight(node, 1)
    attrs = _onnx_attrs(node.attrs)
    return GemmPending(
        name=node.name,
        base="QConvTranspose",
        attrs={**attrs, **stuffing_attrs(attrs, weight.codes.shape[2:])},
        x=quantized_input(node, 0),
        weight=_channel_constant(weight, attrs["group"]),
        bias=optional_bias(node, 2),
        groups=attrs["group"],
        trailing=_RANK,
        channel_axis=1,
    )


def _channel_constant(weight: QConst, groups: int) -> QConst:
    """The weight with every real output channel on axis 1."""
    codes, data = channel_view(weight.codes, groups), channel_view(weight.data, groups)
    return replace(weight, codes=codes, data=data)


def stuffing_attrs(attrs: Mapping[str, Any], kernel: Sequence[int]) -> dict[str, Any]:
    """What the function body pads with; follows from the other attributes.

    The body spreads the map out with zeros (``stuffing``: pads of the map seen as [N, C, H, 1, W,
    1]), pads it (``edges``, ONNX order, may crop) and runs a plain convolution with the mirrored
    kernel. As numbers in the node they let onnx infer the shapes.
    """
    begin, end = split_pads(attrs["pads"])
    full = [d * (k - 1) for d, k in zip(attrs["dilations"], kernel, strict=True)]
    gaps = [s - 1 for s in attrs["strides"]]
    before = [f - b for f, b in zip(full, begin, strict=True)]
    axes = zip(full, end, attrs["output_padding"], gaps, strict=True)
    after = [f - e + extra - gap for f, e, extra, gap in axes]
    return {
        "stuffing": (0, 0, 0, 0, 0, 0, 0, 0, 0, gaps[0], 0, gaps[1]),
        "edges": (0, 0, *before, 0, 0, *after),
    }


def _flops(
    attrs: Mapping[str, Any],
    input_shapes: Sequence[tuple[int, ...] | None],
    output_shape: tuple[int, ...],
) -> int:
    data, weight = input_shapes[0] or (), input_shapes[1] or ()
    return int(np.prod(data, dtype=np.int64) * np.prod(weight[1:], dtype=np.int64))


register(
    OpSpec(
        name="conv_transpose2d",
        family="gemm",
        rule=Rule.OWN_SCALE,
        roles=("input", "weight", "bias"),
        targets=(
            ModuleTarget(nn.ConvTranspose2d, _bind_module, {"weight": "weight", "bias": "bias"}),
            FunctionTarget(F.conv_transpose2d, _bind),
        ),
        float_kernel=_float_kernel,
        lower=_lower,
        kernels=(
            HbirKernel("ConvTranspose", run_float=_run_float, convert=_convert),
            *integer_kernels("QConvTranspose", reference.conv_transpose, fast_conv_transpose),
        ),
        weight_role="weight",
        weight_axis=lambda attrs: 1,
        weight_groups=lambda attrs: int(attrs["groups"]),
        fuse=FuseRole.GEMM,
        march=limits.CONV_TRANSPOSE,
        flops=_flops,
        sample=sample_conv_transpose,
        doc="two-dimensional transposed convolution",
    )
)
