"""What convolutions of one to three spatial axes share: binding, lowering, rules and kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from qtune.errors import ConvertError, ExportError
from qtune.ops.gemm.geometry import Ints, padding_pairs, per_axis, split_pads, torch_pads
from qtune.ops.gemm.pending import (
    GemmPending,
    constant_weight,
    optional_bias,
    quantized_input,
)
from qtune.ops.kernel import Builder, ConvertContext, FloatNode, LowerCall, Operand, Value
from qtune.ops.spec import Bound

ROLES = ("input", "weight", "bias")
PARAMS = {"weight": "weight", "bias": "bias"}

_ONNX_PAD_MODES = {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}
_FUNCTIONS: dict[int, Callable[..., torch.Tensor]] = {
    1: F.conv1d,
    2: F.conv2d,
    3: F.conv3d,
}


def canonical_attrs(
    rank: int, stride: Any, padding: Any, dilation: Any, groups: int, padding_mode: str = "zeros"
) -> dict[str, Any]:
    """Attributes with one number per spatial axis; ``padding`` may stay "same" or "valid"."""
    return {
        "stride": per_axis(stride, rank),
        "padding": padding if isinstance(padding, str) else per_axis(padding, rank),
        "dilation": per_axis(dilation, rank),
        "groups": groups,
        "padding_mode": padding_mode,
    }


def bind_module(rank: int) -> Callable[..., Bound]:
    """The binder of ``nn.Conv<rank>d``."""

    def bind(module: nn.Module, input: Any) -> Bound:
        m: Any = module
        attrs = canonical_attrs(rank, m.stride, m.padding, m.dilation, m.groups, m.padding_mode)
        return Bound((input, None, None), attrs)

    return bind


def bind_function(rank: int) -> Callable[..., Bound]:
    """The binder of ``F.conv<rank>d``."""

    def bind(
        input: Any,
        weight: Any,
        bias: Any = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Bound:
        attrs = canonical_attrs(rank, stride, padding, dilation, groups)
        return Bound((input, weight, bias), attrs)

    return bind


def float_kernel(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    stride: Ints,
    padding: Any,
    dilation: Ints,
    groups: int,
    padding_mode: str = "zeros",
) -> torch.Tensor:
    """torch's convolution; other padding modes pad first, as the module does."""
    if padding_mode != "zeros":
        begin, end = padding_pairs(padding, tuple(weight.shape[2:]), dilation)
        input = F.pad(input, torch_pads(begin, end), mode=padding_mode)
        padding = (0,) * len(stride)
    function = _FUNCTIONS[weight.dim() - 2]
    return function(input, weight, bias, stride, padding, dilation, groups)


def lower(b: Builder, call: LowerCall) -> Value:
    """Emit ONNX Conv, behind a Pad where the padding mode is not zeros."""
    x, weight, bias = call.operands
    attrs, kernel = call.attrs, _shape(call, 1)[2:]
    if len(_shape(call, 0)) != len(kernel) + 2:
        raise ExportError(
            f"{call.name}: a convolution without batch axis has no HBIR form; "
            "give the model inputs with a batch dimension"
        )
    begin, end = padding_pairs(attrs["padding"], kernel, attrs["dilation"])
    mode = attrs.get("padding_mode", "zeros")
    if mode != "zeros":
        pads = np.array([0, 0, *begin, 0, 0, *end], dtype=np.int64)
        x = b.add("Pad", [x, b.constant(pads, "pads")], {"mode": _ONNX_PAD_MODES[mode]})
        begin = end = (0,) * len(kernel)
    onnx_attrs = {
        "strides": attrs["stride"],
        "pads": (*begin, *end),
        "dilations": attrs["dilation"],
        "group": attrs["groups"],
        "kernel_shape": kernel,
    }
    return b.add("Conv", [x, weight] if bias is None else [x, weight, bias], onnx_attrs)


def run_float(
    attrs: Mapping[str, Any],
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """ONNX Conv by torch's convolution, with torch's own treatment of uneven padding."""
    node = onnx_conv_attrs(attrs, weight.dim() - 2)
    begin, end = split_pads(node["pads"])
    common = tuple(min(pair) for pair in zip(begin, end, strict=True))
    if begin != end:
        extra = [[a - c for a, c in zip(side, common, strict=True)] for side in (begin, end)]
        x = F.pad(x, torch_pads(*extra))
    function = _FUNCTIONS[weight.dim() - 2]
    return function(x, weight, bias, node["strides"], common, node["dilations"], node["group"])


def convert(ctx: ConvertContext, node: FloatNode) -> Operand:
    """The integer rule of ONNX Conv."""
    weight = constant_weight(node, 1)
    rank = weight.codes.ndim - 2
    if node.attrs.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        raise ConvertError(
            f"{node.name}: auto_pad={node.attrs['auto_pad']!r} is not supported; "
            "export the model with explicit pads"
        )
    return GemmPending(
        name=node.name,
        base="QConv",
        attrs=onnx_conv_attrs(node.attrs, rank),
        x=quantized_input(node, 0),
        weight=weight,
        bias=optional_bias(node, 2),
        trailing=rank,
    )


def onnx_conv_attrs(attrs: Mapping[str, Any], rank: int) -> dict[str, Any]:
    """strides, pads, dilations and group of an ONNX Conv, defaults filled in."""
    return {
        "strides": tuple(attrs.get("strides") or (1,) * rank),
        "pads": tuple(attrs.get("pads") or (0,) * (2 * rank)),
        "dilations": tuple(attrs.get("dilations") or (1,) * rank),
        "group": int(attrs.get("group", 1)),
    }


def flops(
    attrs: Mapping[str, Any],
    input_shapes: Sequence[tuple[int, ...] | None],
    output_shape: tuple[int, ...],
) -> int:
    """Multiply-adds: output elements times the inputs that each one sums."""
    weight = input_shapes[1] or ()
    return int(np.prod(output_shape, dtype=np.int64) * np.prod(weight[1:], dtype=np.int64))


def _shape(call: LowerCall, index: int) -> tuple[int, ...]:
    shape = call.input_shapes[index]
    if shape is None:
        raise ExportError(f"{call.name}: the shape of its {ROLES[index]} is unknown")
    return shape
