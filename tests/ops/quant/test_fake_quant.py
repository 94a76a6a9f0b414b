"""FakeQuant nodes: torch kernel, function body in ONNX Runtime, integer rule."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from qtune.arith.quantize import fake_quantize, quantize
from qtune.dtype import QuantDType, qint4, qint8, qint16
from qtune.errors import ArgumentError, ConvertError
from qtune.ops import registry
from qtune.ops.gemm.channels import channel_unview, channel_view
from qtune.ops.kernel import FloatConst, FloatValue, PlainValue, QConst, QValue
from qtune.ops.quant.codes import range_dtype
from qtune.ops.quant.fake_quant import emit_fake_quant
from tests.ops.gemm.eager import (
    EagerContext,
    Emitted,
    LowerBuilder,
    Val,
    convert_node,
    quantized,
    run_ort,
)

Array = np.ndarray[Any, Any]
SPECIAL = np.array([0.3, np.inf, -np.inf, np.nan, 9.0, 0.025, -0.025, 3e38, -0.0], np.float32)


def emitted(x: Array, scale: Any, dtype: QuantDType, axis: int = -1, groups: int = 1) -> Emitted:
    node = emit_fake_quant(
        LowerBuilder(), x, np.asarray(scale), dtype, axis=axis, rank=x.ndim, groups=groups
    )
    assert isinstance(node, Emitted)
    return node


def run_float(node: Emitted, x: Array) -> Array:
    kernel = registry.kernel("qtune", node.op_type)
    assert kernel is not None
    assert kernel.run_float is not None
    result = kernel.run_float(node.attrs, torch.from_numpy(x), torch.from_numpy(node.inputs[1]))
    return np.asarray(result)


def both(node: Emitted, x: Array) -> Array:
    """The torch kernel and ONNX Runtime, equal in every bit."""
    by_torch = run_float(node, x)
    by_ort = run_ort(node.op_type, [x, node.inputs[1]], node.attrs)
    np.testing.assert_array_equal(by_torch, by_ort)
    assert by_ort.dtype == np.float32
    return by_torch


@pytest.mark.parametrize("dtype", [qint4, qint8, qint16], ids=str)
def test_special_values_by_every_path(dtype: QuantDType) -> None:
    """A03: infinities saturate, NaN stays NaN, in torch and in ONNX Runtime."""
    result = both(emitted(SPECIAL, 0.05, dtype), SPECIAL)
    np.testing.assert_array_equal(result, fake_quantize(SPECIAL, 0.05, dtype))
    assert np.isnan(result[3])
    assert result[1] == np.float32(dtype.qmax) * np.float32(0.05)


@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3), (1, 2, 3, 4, 5)])
def test_any_rank_keeps_its_shape(shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    node = emitted(x, [0.1], qint8)
    assert node.inputs[1].shape == ()
    assert both(node, x).shape == shape


@pytest.mark.parametrize("axis", [0, 1, -1, 3])
def test_one_scale_per_element_of_an_axis(axis: int) -> None:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((3, 4, 2, 5)).astype(np.float32)
    scale = np.asarray(rng.uniform(0.01, 0.1, x.shape[axis]), np.float32)
    node = emitted(x, scale, qint8, axis)
    np.testing.assert_array_equal(both(node, x), fake_quantize(x, scale, qint8, axis))


def test_ties_go_up_and_imported_ones_to_even() -> None:
    """A21."""
    ties = np.array([0.5, 1.5, 2.5, -0.5, -1.5, -2.5], np.float32)
    assert both(emitted(ties, 1.0, qint8), ties).tolist() == [1, 2, 3, 0, -1, -2]
    node = emitted(ties, 1.0, qint8)
    node.op_type = "FakeQuantHalfEven"
    assert both(node, ties).tolist() == [0, 2, 2, 0, -2, -2]


def test_grouped_weight_has_its_scales_on_real_output_channels() -> None:
    rng = np.random.default_rng(2)
    w = rng.standard_normal((4, 3, 2, 2)).astype(np.float32)
    scale = rng.uniform(0.01, 0.1, 6).astype(np.float32)
    node = emitted(w, scale, qint8, 1, groups=2)
    assert node.op_type == "FakeQuantGrouped"
    expected = channel_unview(fake_quantize(channel_view(w, 2), scale, qint8, 1), 2)
    np.testing.assert_array_equal(both(node, w), expected)
    operands = (FloatConst(w), FloatConst(node.inputs[1]))
    constant = convert_node(EagerContext(), node, operands)
    assert isinstance(constant, QConst)
    codes = channel_unview(quantize(channel_view(w, 2), scale, qint8, 1), 2)
    np.testing.assert_array_equal(constant.codes, codes)
    np.testing.assert_array_equal(constant.data, w)


def test_grouped_scale_of_a_tensor_that_is_no_weight_is_refused() -> None:
    w = np.ones((4, 3, 2, 2), np.float32)
    node = emitted(w, np.ones(6), qint8, 1, groups=2)
    with pytest.raises(ConvertError, match="constant weights"):
        convert_node(EagerContext(), node, (FloatValue(Val(w)), FloatConst(node.inputs[1])))


def convert(ctx: EagerContext, operand: Any, scale: Any, dtype: QuantDType = qint8) -> Any:
    node = emitted(np.ones((2, 2), np.float32), scale, dtype, 0)
    return convert_node(ctx, node, (operand, FloatConst(node.inputs[1])))


def test_constant_becomes_codes_with_its_data_kept() -> None:
    data = np.array([[0.24, 0.26], [10.0, -30.0]], np.float32)
    result = convert(EagerContext(), FloatConst(data), [0.5, 0.2])
    assert isinstance(result, QConst)
    assert (result.axis, result.dtype) == (0, qint8)
    assert result.codes.tolist() == [[0, 1], [50, -128]]
    assert result.data is data


def test_quantized_constant_is_quantized_again_from_its_grid() -> None:
    first = convert(EagerContext(), FloatConst(np.array([0.26, 1.0], np.float32)), [0.5])
    second = convert(EagerContext(), first, [0.3])
    assert second.codes.tolist() == [2, 3]


def test_float_tensor_is_quantized_by_a_node() -> None:
    ctx = EagerContext()
    result = convert(ctx, FloatValue(Val(np.array([0.26, 99.0], np.float32))), [0.5], qint16)
    assert [e[0] for e in ctx.emitted] == ["Quantize"]
    assert isinstance(result, QValue)
    assert result.value.array.dtype == np.int16
    assert result.value.codes.tolist() == [1, 198]


def test_codes_are_requantized_only_to_another_grid() -> None:
    ctx = EagerContext()
    x = quantized(np.array([1.0, 2.0], np.float32), 0.5, qint8)
    assert convert(ctx, x, [0.5]) is x
    assert ctx.emitted == []
    wider = convert(ctx, x, [0.25], qint16)
    assert wider.value.codes.tolist() == [4, 8]
    assert ctx.emitted[0][0] == "Requantize"


def test_imported_tensor_is_quantized_to_even() -> None:
    ctx = EagerContext()
    node = emitted(np.ones(2, np.float32), 1.0, qint8)
    node.op_type = "FakeQuantHalfEven"
    value = FloatValue(Val(np.array([0.5, 1.5, 2.5], np.float32)))
    result = convert_node(ctx, node, (value, FloatConst(node.inputs[1])))
    assert result.value.codes.tolist() == [0, 2, 2]
    constant = FloatConst(np.array([0.5, 1.5, 2.5], np.float32))
    codes = convert_node(ctx, node, (constant, FloatConst(node.inputs[1])))
    assert codes.codes.tolist() == [0, 2, 2]


@pytest.mark.parametrize(
    ("operand", "scale", "words"),
    [
        (FloatValue(Val(np.ones((2, 2), np.float32))), [0.1, 0.2], "2 scales; the BPU takes one"),
        (PlainValue(Val(np.ones(2))), [0.1], "a mask or integers; only float tensors have a scale"),
    ],
)
def test_wrong_operands_are_named(operand: Any, scale: Any, words: str) -> None:
    with pytest.raises(ConvertError, match=f"layer: .*{words}"):
        convert(EagerContext(), operand, scale)


def test_scale_that_is_computed_is_refused() -> None:
    node = emitted(np.ones(2, np.float32), 1.0, qint8)
    value = FloatValue(Val(np.ones(2, np.float32)))
    with pytest.raises(ConvertError, match="scale of FakeQuant must be an initializer"):
        convert_node(EagerContext(), node, (value, value))


def test_range_of_no_dtype_is_refused() -> None:
    assert range_dtype({"qmin": -8, "qmax": 7}) is qint4
    with pytest.raises(ArgumentError, match="0 .. 255"):
        range_dtype({"qmin": 0, "qmax": 255})


def test_gradient_passes_inside_the_range_only() -> None:
    kernel = registry.kernel("qtune", "FakeQuant")
    assert kernel is not None
    assert kernel.run_float is not None
    x = torch.tensor([0.3, 50.0], requires_grad=True)
    attrs = {"axis": -1, "qmin": -128, "qmax": 127}
    kernel.run_float(attrs, x, torch.tensor(0.1)).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [1.0, 0.0]
