"""What transposed convolutions of one, two and three spatial axes share.

The weight is [I, O / groups, ...] with one scale per real output channel (numerics.md section 1).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from qtune.errors import ExportError
from qtune.ops.gemm.channels import channel_view
from qtune.ops.gemm.geometry import Ints, per_axis, split_pads, transposed_size
from qtune.ops.gemm.pending import GemmPending, constant_weight, optional_bias, quantized_input
from qtune.ops.kernel import (
    Builder,
    ConvertContext,
    FloatNode,
    LowerCall,
    Operand,
    QConst,
    Value,
)
from qtune.ops.spec import Bound

ROLES = ("input", "weight", "bias")
PARAMS = {"weight": "weight", "bias": "bias"}

_FUNCTIONS: Mapping[int, Callable[..., torch.Tensor]] = MappingProxyType(
    {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}
)


def _attrs(
    rank: int,
    stride: Any,
    padding: Any,
    output_padding: Any,
    groups: int,
    dilation: Any,
    output_size: Any,
) -> dict[str, Any]:
    return {
        "stride": per_axis(stride, rank),
        "padding": per_axis(padding, rank),
        "output_padding": per_axis(output_padding, rank),
        "groups": groups,
        "dilation": per_axis(dilation, rank),
        "output_size": None if output_size is None else tuple(output_size)[-rank:],
    }


def bind_module(rank: int) -> Callable[..., Bound]:
    """The binder of ``nn.ConvTranspose<rank>d``."""

    def bind(module: nn.Module, input: Any, output_size: Any = None) -> Bound:
        m: Any = module
        attrs = _attrs(
            rank, m.stride, m.padding, m.output_padding, m.groups, m.dilation, output_size
        )
        return Bound((input, None, None), attrs)

    return bind


def bind_function(rank: int) -> Callable[..., Bound]:
    """The binder of ``F.conv_transpose<rank>d``."""

    def bind(
        input: Any,
        weight: Any,
        bias: Any = None,
        stride: Any = 1,
        padding: Any = 0,
        output_padding: Any = 0,
        groups: int = 1,
        dilation: Any = 1,
    ) -> Bound:
        attrs = _attrs(rank, stride, padding, output_padding, groups, dilation, None)
        return Bound((input, weight, bias), attrs)

    return bind


def _output_padding(attrs: Mapping[str, Any], size: Ints, kernel: Ints) -> Ints:
    """The extra elements at the end; from ``output_size`` where the call gives one."""
    if attrs.get("output_size") is None:
        return tuple(attrs["output_padding"])
    plain = transposed_size(size, kernel, attrs, (0,) * len(kernel))
    return tuple(int(want) - n for want, n in zip(attrs["output_size"], plain, strict=True))


def float_kernel(
    input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, **attrs: Any
) -> torch.Tensor:
    """torch's transposed convolution of the weight's rank."""
    extra = _output_padding(attrs, tuple(input.shape[2:]), tuple(weight.shape[2:]))
    function = _FUNCTIONS[weight.dim() - 2]
    return function(
        input,
        weight,
        bias,
        attrs["stride"],
        attrs["padding"],
        extra,
        attrs["groups"],
        attrs["dilation"],
    )


def lower(b: Builder, call: LowerCall) -> Value:
    """Emit ONNX ConvTranspose."""
    x, weight, bias = call.operands
    attrs, data, kernel = call.attrs, call.input_shapes[0] or (), (call.input_shapes[1] or ())[2:]
    if len(data) != len(kernel) + 2:
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


def _onnx_attrs(attrs: Mapping[str, Any], rank: int) -> dict[str, Any]:
    return {
        "strides": tuple(attrs.get("strides") or (1,) * rank),
        "pads": tuple(attrs.get("pads") or (0,) * (2 * rank)),
        "output_padding": tuple(attrs.get("output_padding") or (0,) * rank),
        "dilations": tuple(attrs.get("dilations") or (1,) * rank),
        "group": int(attrs.get("group", 1)),
    }


def run_float(
    attrs: Mapping[str, Any],
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """ONNX ConvTranspose by torch's."""
    rank = weight.dim() - 2
    node = _onnx_attrs(attrs, rank)
    begin, end = split_pads(node["pads"])
    # torch knows one padding per axis: what is larger on one side is cut off
    both = tuple(map(min, begin, end))
    result: torch.Tensor = _FUNCTIONS[rank](
        x, weight, bias, node["strides"], both, node["output_padding"], node["group"],
        node["dilations"],
    )  # fmt: skip
    for axis, (front, back, least) in enumerate(zip(begin, end, both, strict=True), start=2):
        size = result.shape[axis] - (front - least) - (back - least)
        result = result.narrow(axis, front - least, size)
    return result


def convert(ctx: ConvertContext, node: FloatNode) -> Operand:
    """The integer rule of ONNX ConvTranspose."""
    weight = constant_weight(node, 1)
    rank = weight.codes.ndim - 2
    attrs = _onnx_attrs(node.attrs, rank)
    return GemmPending(
        name=node.name,
        base="QConvTranspose",
        attrs={**attrs, **stuffing_attrs(attrs, weight.codes.shape[2:])},
        x=quantized_input(node, 0),
        weight=_channel_constant(weight, attrs["group"]),
        bias=optional_bias(node, 2),
        groups=attrs["group"],
        trailing=rank,
        channel_axis=1,
    )


def _channel_constant(weight: QConst, groups: int) -> QConst:
    """The weight with every real output channel on axis 1."""
    codes, data = channel_view(weight.codes, groups), channel_view(weight.data, groups)
    return replace(weight, codes=codes, data=data)


def stuffing_attrs(attrs: Mapping[str, Any], kernel: Sequence[int]) -> dict[str, Any]:
    """What the function body pads with; follows from the other attributes.

    The body spreads the map out with zeros (``stuffing``: pads of the map seen as [N, C, H, 1, W,
    1], likewise at other ranks), pads it (``edges``, ONNX order, may crop) and runs a plain
    convolution with the mirrored kernel. As numbers in the node they let onnx infer the shapes.
    """
    begin, end = split_pads(attrs["pads"])
    full = [d * (k - 1) for d, k in zip(attrs["dilations"], kernel, strict=True)]
    gaps = [s - 1 for s in attrs["strides"]]
    before = [f - b for f, b in zip(full, begin, strict=True)]
    axes = zip(full, end, attrs["output_padding"], gaps, strict=True)
    after = [f - e + extra - gap for f, e, extra, gap in axes]
    spread = [amount for gap in gaps for amount in (0, gap)]
    return {
        "stuffing": (*[0] * (len(spread) + 4), *spread),
        "edges": (0, 0, *before, 0, 0, *after),
    }


def flops(
    attrs: Mapping[str, Any],
    input_shapes: Sequence[tuple[int, ...] | None],
    output_shape: tuple[int, ...],
) -> int:
    """Multiply-adds: input elements times the outputs that each one reaches."""
    data, weight = input_shapes[0] or (), input_shapes[1] or ()
    return int(np.prod(data, dtype=np.int64) * np.prod(weight[1:], dtype=np.int64))
