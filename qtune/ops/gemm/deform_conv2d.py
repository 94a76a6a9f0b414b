"""deform_conv2d: bilinear samples of int8 data at int16 offsets, then the GEMM (numerics.md 3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import torch

from qtune.arith.grid import ONE
from qtune.dtype import qint16
from qtune.ops.elementwise.scaling import integers
from qtune.ops.gemm import limits
from qtune.ops.gemm.convolution import flops
from qtune.ops.gemm.deform_layer import DeformConv2d, deform_conv2d, offset_groups, tap_positions
from qtune.ops.gemm.geometry import per_axis, split_pads
from qtune.ops.gemm.pending import GemmPending, constant_weight, optional_bias, quantized_input
from qtune.ops.gemm.samples import sample_deform_conv
from qtune.ops.kernel import (
    Builder,
    ConvertContext,
    FloatNode,
    HbirKernel,
    LowerCall,
    Operand,
    QConst,
    QValue,
    Value,
)
from qtune.ops.quant.codes import ONNX_INT16
from qtune.ops.registry import register
from qtune.ops.resize.sampling import coordinates, emit_positions, emit_sample, sampled_map
from qtune.ops.spec import Bound, ForeignTarget, FunctionTarget, ModuleTarget, OpSpec, Rule

ROLES = ("input", "offset", "weight", "bias", "modulation")
PARAMS = {"weight": "weight", "bias": "bias"}


def _bind_module(module: Any, input: Any, offset: Any, mask: Any = None) -> Bound:
    attrs = {key: per_axis(getattr(module, key), 2) for key in ("stride", "padding", "dilation")}
    return Bound((input, offset, None, None, mask), {**attrs, "groups": module.groups})


def _bind_function(
    x: Any, offset: Any, weight: Any, bias: Any = None, modulation: Any = None, **attrs: Any
) -> Bound:
    return Bound((x, offset, weight, bias, modulation), attrs)


def _bind_operator(
    input: Any,
    weight: Any,
    offset: Any,
    mask: Any,
    bias: Any,
    stride_h: int,
    stride_w: int,
    pad_h: int,
    pad_w: int,
    dilation_h: int,
    dilation_w: int,
    groups: int,
    offset_groups: int,
    use_mask: bool,
) -> Bound:
    """The operator below ``torchvision.ops.deform_conv2d``; its bias is a tensor always."""
    attrs = {
        "stride": (stride_h, stride_w),
        "padding": (pad_h, pad_w),
        "dilation": (dilation_h, dilation_w),
        "groups": groups,
    }
    return Bound((input, offset, weight, bias, mask if use_mask else None), attrs)


def _lower(b: Builder, call: LowerCall) -> Value:
    x, offset, weight, bias, modulation = call.operands
    kernel = (call.input_shapes[2] or ())[2:]
    attrs = call.attrs
    onnx_attrs = {
        "strides": attrs["stride"],
        "pads": (*attrs["padding"], *attrs["padding"]),
        "dilations": attrs["dilation"],
        "group": attrs["groups"],
        "offset_group": offset_groups((call.input_shapes[1] or (0, 0))[1], kernel),
        "kernel_shape": kernel,
    }
    operands = [x, weight, offset, bias, modulation]
    while operands[-1] is None:
        operands.pop()
    return b.add("DeformConv", operands, onnx_attrs)


def _run_float(
    attrs: Mapping[str, Any],
    x: torch.Tensor,
    weight: torch.Tensor,
    offset: torch.Tensor,
    bias: torch.Tensor | None = None,
    modulation: torch.Tensor | None = None,
) -> torch.Tensor:
    begin, _ = split_pads(attrs["pads"])
    return deform_conv2d(
        x,
        offset,
        weight,
        bias,
        modulation,
        stride=tuple(attrs["strides"]),
        padding=begin,
        dilation=tuple(attrs["dilations"]),
        groups=int(attrs.get("group", 1)),
    )


def _convert(ctx: ConvertContext, node: FloatNode) -> Operand:
    weight = constant_weight(node, 1)
    columns = _columns(ctx, node, weight.codes.shape[2:])
    outputs = weight.codes.shape[0]
    return GemmPending(
        name=node.name,
        base="QConv",
        attrs={
            "strides": (1, 1),
            "pads": (0, 0, 0, 0),
            "dilations": (1, 1),
            "group": int(node.attrs.get("group", 1)),
        },
        x=columns,
        weight=_reshaped(weight, (outputs, -1, 1, 1)),
        bias=optional_bias(node, 3),
        trailing=2,
    )


def _reshaped(weight: QConst, shape: tuple[int, ...]) -> QConst:
    return replace(weight, codes=weight.codes.reshape(shape), data=weight.data.reshape(shape))


def _columns(ctx: ConvertContext, node: FloatNode, kernel: Sequence[int]) -> QValue:
    """The sampled taps as a map [N, in * taps, h, w], the taps of a channel side by side."""
    channels, height, width = (node.input_shapes[0] or ())[1:]
    moves, *size = (node.input_shapes[2] or ())[1:]
    groups, taps = offset_groups(moves, kernel), prod(kernel)
    x = sampled_map(ctx, node) or quantized_input(node, 0)
    if groups > 1:
        x = _view(ctx, x, (-1, channels // groups, height, width))
    at = _positions(ctx, node, tuple(kernel), moves, (size[0], size[1]))
    taken = emit_sample(ctx, x, at)
    modulation = node.operands[4] if len(node.operands) > 4 else None
    if modulation is not None:
        factors = coordinates(ctx, node, 4, "mask")
        taken = _product(ctx, taken, _view(ctx, factors, (-1, 1, taps * size[0], size[1])))
    return _view(ctx, taken, (-1, channels * taps, *size))


def _positions(
    ctx: ConvertContext, node: FloatNode, kernel: Sequence[int], moves: int, size: Sequence[int]
) -> Value:
    offset = coordinates(ctx, node, 2, "offset")
    # (dy, dx) of each tap becomes (x, y).
    turned = np.arange(moves, dtype=np.int64).reshape(-1, 2)[:, ::-1].reshape(-1)
    chosen = ctx.add("Gather", [offset.value, ctx.constant(turned, "turned")], {"axis": 1})
    taps = prod(kernel)
    split = _view(ctx, replace(offset, value=chosen), (-1, taps, 2, *size))
    last = ctx.add("Transpose", [split.value], {"perm": (0, 1, 3, 4, 2)})
    begin, _ = split_pads(node.attrs["pads"])
    strides, dilations = tuple(node.attrs["strides"]), tuple(node.attrs["dilations"])
    base = tap_positions(tuple(kernel), strides, begin, dilations, tuple(size)) * ONE
    at = emit_positions(ctx, replace(offset, value=last), (1.0, 1.0), base)
    shape = ctx.constant(np.array((-1, taps * size[0], size[1], 2), dtype=np.int64), "shape")
    value: Value = ctx.add("Reshape", [at, shape])
    return value


def _product(ctx: ConvertContext, taken: QValue, factors: QValue) -> QValue:
    """The exact product of two int8 codes, an int16 code: nothing is rounded before the GEMM."""
    identity = integers(ctx, m=1 << 14, n=14)
    attrs = {"lo": qint16.qmin, "hi": qint16.qmax, "to": ONNX_INT16}
    value = ctx.add("QMul", [taken.value, factors.value, *identity], attrs, domain="qtune")
    scale = float(np.float32(taken.scale)) * float(np.float32(factors.scale))
    return QValue(value, qint16, scale)


def _view(ctx: ConvertContext, x: QValue, shape: Sequence[int]) -> QValue:
    target = ctx.constant(np.array(shape, dtype=np.int64), "shape")
    return replace(x, value=ctx.add("Reshape", [x.value, target]))


register(
    OpSpec(
        name="deform_conv2d",
        family="gemm",
        rule=Rule.OWN_SCALE,
        roles=ROLES,
        targets=(
            ModuleTarget(DeformConv2d, _bind_module, PARAMS),
            FunctionTarget(deform_conv2d, _bind_function),
        ),
        foreign=(
            ForeignTarget("torchvision.ops.deform_conv.DeformConv2d", _bind_module, PARAMS),
            ForeignTarget("torchvision.deform_conv2d", _bind_operator),
        ),
        float_kernel=deform_conv2d,
        lower=_lower,
        kernels=(HbirKernel("DeformConv", run_float=_run_float, convert=_convert),),
        wants={"offset": qint16},
        weight_role="weight",
        weight_axis=lambda attrs: 0,
        march=limits.DEFORM_CONV,
        flops=lambda attrs, inputs, output: flops(attrs, (inputs[0], inputs[2]), output),
        sample=sample_deform_conv,
        doc="convolution whose taps are moved by offsets, bilinear",
    )
)
