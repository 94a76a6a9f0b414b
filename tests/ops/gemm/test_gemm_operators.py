"""Every GEMM of the registry on sampled calls: float bits, integer bits, distance between both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from qtune.arith.quantize import fake_quantize, quantize, scale_from_absmax
from qtune.dtype import QuantDType, qint8, qint16
from qtune.ops import registry
from qtune.ops.gemm.channels import channel_unview, channel_view
from qtune.ops.kernel import FloatConst, Pending, QValue
from qtune.ops.spec import OpSpec
from tests.ops.gemm.eager import (
    EagerContext,
    convert_node,
    lower,
    quantized,
    run_lowered,
    weight_constant,
)

Array = np.ndarray[Any, Any]
WITH_WEIGHT = (
    "conv2d",
    "conv1d",
    "conv3d",
    "conv_transpose2d",
    "conv_transpose1d",
    "conv_transpose3d",
    "linear",
)
PAIRS = ((qint8, qint8), (qint16, qint8), (qint8, qint16), (qint16, qint16))


@dataclass
class Layer:
    """One sampled layer with fake-quantized operands and its integer form, still pending."""

    expected: Array
    pending: Pending


def sampled_tensors(entry: OpSpec, seed: int) -> tuple[list[torch.Tensor | None], dict[str, Any]]:
    rng = np.random.default_rng(seed)
    sample = entry.sample(rng)  # type: ignore[misc]
    torch.manual_seed(seed)
    tensors = [None if shape is None else torch.randn(shape) for shape in sample.shapes]
    return tensors, dict(sample.attrs)


def make_layer(
    ctx: EagerContext, name: str, seed: int, x_dtype: QuantDType, w_dtype: QuantDType
) -> Layer:
    """``expected``: the float result on fake-quantized operands, summed in float64."""
    entry = registry.spec(name)
    tensors, attrs = sampled_tensors(entry, seed)
    x, w, b = (None if t is None else t.numpy() for t in tensors)
    assert x is not None
    assert w is not None
    axis = entry.weight_axis(attrs)  # type: ignore[misc]
    groups = 1 if entry.weight_groups is None else entry.weight_groups(attrs)
    view = channel_view(w, groups)
    others = tuple(i for i in range(view.ndim) if i != axis)
    w_scale = scale_from_absmax(np.abs(view).max(axis=others), w_dtype)
    x_scale = float(scale_from_absmax(np.abs(x).max(), x_dtype))
    x_q = torch.from_numpy(fake_quantize(x, x_scale, x_dtype)).double()
    w_view = fake_quantize(view, w_scale, w_dtype, axis)
    w_q = torch.from_numpy(np.ascontiguousarray(channel_unview(w_view, groups))).double()
    bias = None if b is None else torch.from_numpy(b).double()
    expected = entry.float_kernel(x_q, w_q, bias, **attrs)  # type: ignore[misc]
    node = lower(entry, tensors, attrs)
    operands: list[Any] = [
        quantized(x, x_scale, x_dtype),
        weight_constant(w, w_scale, w_dtype, axis, groups),
    ]
    if b is not None:
        operands.append(FloatConst(b))
    pending = convert_node(ctx, node, operands)
    assert isinstance(pending, Pending)
    return Layer(expected.numpy(), pending)


def steps_apart(codes: Array, real: Array, scale: float, dtype: QuantDType) -> int:
    ideal = quantize(real.astype(np.float32), scale, dtype)
    return int(np.abs(codes.astype(np.int64) - ideal).max())


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("name", [*WITH_WEIGHT, "matmul"])
def test_lowered_float_node_equals_the_torch_call_in_every_bit(name: str, seed: int) -> None:
    entry = registry.spec(name)
    tensors, attrs = sampled_tensors(entry, seed)
    expected = entry.float_kernel(*tensors, **attrs)  # type: ignore[misc]
    assert torch.equal(run_lowered(lower(entry, tensors, attrs)), expected)


@pytest.mark.parametrize(("x_dtype", "w_dtype"), PAIRS, ids=str)
@pytest.mark.parametrize("name", WITH_WEIGHT)
@pytest.mark.parametrize("seed", [0, 1])
def test_integer_result_is_one_step_from_fake_quant(
    name: str, seed: int, x_dtype: QuantDType, w_dtype: QuantDType
) -> None:
    """numerics.md section 3: conv and linear stay within one output step of the same input.

    The context checks reference = fast = ONNX Runtime on the way.
    """
    ctx = EagerContext()
    layer = make_layer(ctx, name, seed + 10, x_dtype, w_dtype)
    out = x_dtype
    scale = float(scale_from_absmax(np.abs(layer.expected).max(), out))
    result = layer.pending.emit(ctx, scale, out)
    assert steps_apart(result.value.array, layer.expected, scale, out) <= 1
    assert result.scale == scale
    assert ctx.reports == []


@pytest.mark.parametrize("name", WITH_WEIGHT)
def test_addend_and_relu_join_before_the_one_requantize(name: str) -> None:
    """numerics.md section 2.4."""
    ctx = EagerContext()
    layer = make_layer(ctx, name, 31, qint8, qint8)
    noise: Any = np.random.default_rng(5).standard_normal(layer.expected.shape)
    other: Array = noise.astype(np.float32)
    s_a = float(scale_from_absmax(np.abs(other).max(), qint8))
    joined = layer.pending.accumulate(ctx, quantized(other, s_a, qint8))
    assert joined is not None
    rectified = joined.clamp(ctx, 0.0, None)
    assert rectified is not None
    real = np.maximum(layer.expected + fake_quantize(other, s_a, qint8), 0)
    scale = float(scale_from_absmax(real.max(), qint8))
    result = rectified.emit(ctx, scale, qint8)
    assert [e[0] for e in ctx.emitted][-1].endswith("Add")
    assert result.code_min == 0
    assert int(result.value.array.min()) >= 0
    assert steps_apart(result.value.array, real, scale, qint8) <= 1


def test_second_addend_and_addend_behind_a_clamp_are_refused() -> None:
    ctx = EagerContext()
    layer = make_layer(ctx, "linear", 31, qint8, qint8)
    addend = quantized(np.zeros(layer.expected.shape, np.float32), 0.1, qint8)
    joined = layer.pending.accumulate(ctx, addend)
    assert joined is not None
    assert joined.accumulate(ctx, addend) is None
    clamped = layer.pending.clamp(ctx, 0.0, 6.0)
    assert clamped is not None
    assert clamped.accumulate(ctx, addend) is None


@pytest.mark.parametrize("x_dtype", [qint8, qint16], ids=str)
@pytest.mark.parametrize("name", WITH_WEIGHT)
def test_high_precision_output_is_the_exact_sum_in_float32(name: str, x_dtype: QuantDType) -> None:
    ctx = EagerContext()
    layer = make_layer(ctx, name, 32, x_dtype, qint8)
    result = layer.pending.dequantize(ctx)
    assert result is not None
    values = result.value.array
    assert values.dtype == np.float32
    # The bias is rounded to the accumulator's grid: at most half of its step s_x * s_w, which is
    # below 1e-3 for these ranges.
    np.testing.assert_allclose(values, layer.expected, atol=1e-3, rtol=1e-6)


def test_relu6_clamps_codes_at_the_rounded_bound() -> None:
    ctx = EagerContext()
    layer = make_layer(ctx, "linear", 33, qint8, qint8)
    clamped = layer.pending.clamp(ctx, 0.0, 6.0)
    assert clamped is not None
    result = clamped.emit(ctx, 0.1, qint8)
    assert (result.code_min, result.code_max) == (0, 60)
    assert isinstance(result, QValue)


def test_clamp_of_a_high_precision_output_follows_in_float() -> None:
    ctx = EagerContext()
    layer = make_layer(ctx, "linear", 34, qint8, qint8)
    clamped = layer.pending.clamp(ctx, 0.0, None)
    assert clamped is not None
    result = clamped.dequantize(ctx)
    assert result is not None
    assert [e[0] for e in ctx.emitted] == ["QLinearAcc", "DequantizeAcc", "Relu"]
    assert float(result.value.array.min()) == 0.0
