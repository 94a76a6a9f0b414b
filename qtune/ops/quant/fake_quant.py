"""FakeQuant nodes: where a float graph says which grid a value lies on (numerics.md section 1).

``FakeQuant(x, scale; axis, qmin, qmax)``; the scale is stored so that it broadcasts on x: a scalar,
or ones around the channel axis. ``FakeQuantHalfEven`` rounds ties to even, as imported standard
ONNX nodes do. ``FakeQuantGrouped`` is for weights of grouped transposed convolutions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from qtune.arith.quantize import channel_scale, dequantize, quantize
from qtune.arith.rounding import saturate
from qtune.arith_fast.fake_quantize import fake_quantize
from qtune.dtype import QuantDType
from qtune.errors import ConvertError
from qtune.ops.gemm.channels import channel_unview, channel_view
from qtune.ops.kernel import (
    Builder,
    ConvertContext,
    FloatConst,
    FloatNode,
    FloatValue,
    HbirKernel,
    Operand,
    Pending,
    QConst,
    QValue,
    Value,
)
from qtune.ops.operand_words import described
from qtune.ops.quant.codes import carrier, range_dtype
from qtune.ops.quant.emit import emit_quantize, limit_codes
from qtune.ops.registry import register_kernel

Array = np.ndarray[Any, Any]
QuantizeArray = Callable[[Array, Array, QuantDType, int], Array]


def emit_fake_quant(
    b: Builder,
    value: Value,
    scale: Array,
    dtype: QuantDType,
    *,
    axis: int = -1,
    rank: int = 0,
    groups: int = 1,
) -> Value:
    """Append the FakeQuant of ``value`` and return its result.

    ``scale``: float32, one value or one per channel. ``axis``: the channel axis of ``value``, which
    has ``rank`` dimensions; both count only for more than one scale. ``groups`` > 1: ``value`` is
    the weight ``[in, out / groups, ...]`` of a transposed convolution with ``out`` scales.
    """
    steps = np.asarray(scale, dtype=np.float32)
    limits = {"qmin": dtype.qmin, "qmax": dtype.qmax}
    if steps.size == 1:
        factor = b.constant(steps.reshape(()), "scale")
        return b.add("FakeQuant", [value, factor], {"axis": -1, **limits}, domain="qtune")
    if groups > 1:
        factor = b.constant(steps.reshape(groups, 1, -1, *[1] * (rank - 2)), "scale")
        attrs = {"groups": groups, **limits}
        return b.add("FakeQuantGrouped", [value, factor], attrs, domain="qtune")
    axis %= rank
    factor = b.constant(steps.reshape(*[1] * axis, -1, *[1] * (rank - axis - 1)), "scale")
    return b.add("FakeQuant", [value, factor], {"axis": axis, **limits}, domain="qtune")


def quantize_half_even(x: Array, scale: Array, dtype: QuantDType, axis: int = -1) -> Array:
    """Codes by the rule of ONNX QuantizeLinear without zero point: ties to even."""
    values = np.asarray(x, dtype=np.float32)
    with np.errstate(over="ignore"):
        return saturate(np.rint(values / channel_scale(scale, values, axis)), dtype)


def _run(attrs: Mapping[str, Any], x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return fake_quantize(x, scale.reshape(-1), attrs["qmin"], attrs["qmax"], attrs["axis"])


def _run_half_even(attrs: Mapping[str, Any], x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return torch.round(x / scale).clamp(attrs["qmin"], attrs["qmax"]) * scale


def _run_grouped(attrs: Mapping[str, Any], x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    view = channel_view(x, attrs["groups"])
    result = fake_quantize(view, scale.reshape(-1), attrs["qmin"], attrs["qmax"], 1)
    return torch.as_tensor(channel_unview(result, attrs["groups"]))


def _scale(node: FloatNode) -> Array:
    scale = node.operands[1]
    if isinstance(scale, FloatConst):
        return scale.data.astype(np.float32).reshape(-1)
    raise ConvertError(
        f"{node.name}: the scale of {node.op_type} must be an initializer, got "
        f"{type(scale).__name__}"
    )


def _convert(ctx: ConvertContext, node: FloatNode) -> Operand:
    operand, scale = node.operands[0], _scale(node)
    dtype, axis = range_dtype(node.attrs), int(node.attrs["axis"])
    constant = _constant_data(operand)
    if constant is not None:
        return _quantize_constant(quantize, constant, scale, dtype, axis)
    return _convert_activation(ctx, node, operand, scale, dtype)


def _convert_activation(
    ctx: ConvertContext,
    node: FloatNode,
    operand: Operand | None,
    scale: Array,
    dtype: QuantDType,
) -> QValue:
    if scale.size != 1:
        raise ConvertError(
            f"{node.name}: an activation has {scale.size} scales; the BPU takes one per tensor. "
            "Use an observer without ch_axis for it"
        )
    step = float(scale[0])
    if isinstance(operand, Pending):
        return operand.emit(ctx, step, dtype)
    if isinstance(operand, QValue):
        return ctx.requantize(operand, step, dtype)
    if isinstance(operand, FloatValue):
        return ctx.quantize(operand.value, step, dtype)
    raise ConvertError(
        f"{node.name}: {node.op_type} got {described(operand)}; only float tensors have a "
        "scale. Remove the fake-quantize (in an ONNX file: the calibration node) from this tensor"
    )


def _convert_half_even(ctx: ConvertContext, node: FloatNode) -> Operand:
    """An imported pair: its range is that of the codes less the zero point (numerics.md 1)."""
    operand, scale = node.operands[0], _scale(node)
    low, high, axis = (int(node.attrs[key]) for key in ("qmin", "qmax", "axis"))
    dtype = carrier(low, high)
    constant = _constant_data(operand)
    if constant is not None:
        return _quantize_constant(quantize_half_even, constant, scale, dtype, axis)
    if isinstance(operand, FloatValue) and scale.size == 1:
        limits = (low, high)
        return emit_quantize(
            ctx, operand.value, float(scale[0]), dtype, half_even=True, limits=limits
        )
    if isinstance(operand, Pending) and scale.size == 1:
        step = float(scale[0])
        operand = operand.clamp(ctx, low * step, high * step) or operand
    result = _convert_activation(ctx, node, operand, scale, dtype)
    return limit_codes(ctx, result, low, high)


def _convert_grouped(ctx: ConvertContext, node: FloatNode) -> Operand:
    constant = _constant_data(node.operands[0])
    if constant is None:
        raise ConvertError(
            f"{node.name}: FakeQuantGrouped is for constant weights, got "
            f"{type(node.operands[0]).__name__}"
        )
    groups = int(node.attrs["groups"])
    view = channel_view(constant, groups)
    quantized = _quantize_constant(quantize, view, _scale(node), range_dtype(node.attrs), 1)
    codes = channel_unview(quantized.codes, groups)
    return QConst(codes, quantized.scale, 1, quantized.dtype, constant)


def _constant_data(operand: Operand | None) -> Array | None:
    if isinstance(operand, FloatConst):
        return operand.data
    if isinstance(operand, QConst):
        return dequantize(operand.codes, operand.scale, operand.axis)
    return None


def _quantize_constant(
    rule: QuantizeArray, data: Array, scale: Array, dtype: QuantDType, axis: int
) -> QConst:
    axis = -1 if scale.size == 1 else axis
    return QConst(rule(data, scale, dtype, axis), scale, axis, dtype, data)


register_kernel(HbirKernel("FakeQuant", "qtune", run_float=_run, convert=_convert))
register_kernel(
    HbirKernel("FakeQuantHalfEven", "qtune", run_float=_run_half_even, convert=_convert_half_even)
)
register_kernel(
    HbirKernel("FakeQuantGrouped", "qtune", run_float=_run_grouped, convert=_convert_grouped)
)
