"""matmul and linear: spellings, constants, dtypes, broadcasting."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from qtune.arith.quantize import fake_quantize, quantize, scale_from_absmax
from qtune.dtype import QuantDType, qint8, qint16
from qtune.errors import ConvertError, MarchError
from qtune.ops import registry
from qtune.ops.kernel import FloatConst, FloatValue
from tests.ops.gemm.eager import (
    EagerContext,
    Emitted,
    Val,
    convert_node,
    lower,
    quantized,
    weight_constant,
)

MATMUL = Emitted("MatMul", "", [], {})


def random(rng: Any, *shape: int) -> Any:
    return rng.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("dtypes", [(qint8, qint8), (qint16, qint8), (qint8, qint16),
                                    (qint16, qint16)], ids=str)  # fmt: skip
@pytest.mark.parametrize(
    ("a_shape", "b_shape"), [((3, 5), (5, 4)), ((2, 1, 3, 5), (3, 5, 2)), ((5,), (2, 5, 3))]
)
def test_integer_product_is_one_step_from_fake_quant(
    a_shape: tuple[int, ...], b_shape: tuple[int, ...], dtypes: tuple[QuantDType, QuantDType]
) -> None:
    rng = np.random.default_rng(0)
    a, b = random(rng, *a_shape), random(rng, *b_shape)
    s_a, s_b = (
        float(scale_from_absmax(np.abs(v).max(), d)) for v, d in zip((a, b), dtypes, strict=True)
    )
    ctx = EagerContext()
    operands = (quantized(a, s_a, dtypes[0]), quantized(b, s_b, dtypes[1]))
    pending = convert_node(ctx, MATMUL, operands)
    real = fake_quantize(a, s_a, dtypes[0]).astype(np.float64) @ fake_quantize(b, s_b, dtypes[1])
    out = dtypes[0]
    scale = float(scale_from_absmax(np.abs(real).max(), out))
    codes = pending.emit(ctx, scale, out).value.codes
    assert np.abs(codes - quantize(real.astype(np.float32), scale, out)).max() <= 1


@pytest.mark.parametrize("side", [0, 1])
def test_constant_operand_has_one_scale_of_its_own(side: int) -> None:
    rng = np.random.default_rng(1)
    x, c = random(rng, 4, 4), random(rng, 4, 4)
    s_x, s_c = (float(scale_from_absmax(np.abs(v).max(), qint8)) for v in (x, c))
    constant = weight_constant(c, np.array([s_c], np.float32), qint8, -1)
    ctx = EagerContext()
    operands = [quantized(x, s_x, qint8), constant]
    pending = convert_node(ctx, MATMUL, operands if side else operands[::-1])
    pair = (fake_quantize(x, s_x, qint8), fake_quantize(c, s_c, qint8))
    real = np.matmul(*(pair if side else pair[::-1]))
    scale = float(scale_from_absmax(np.abs(real).max(), qint8))
    codes = pending.emit(ctx, scale, qint8).value.codes
    assert np.abs(codes - quantize(real, scale, qint8)).max() <= 1


def test_high_precision_product_is_exact() -> None:
    a, b = np.array([[3.0, -2.0]], np.float32), np.array([[5.0], [7.0]], np.float32)
    ctx = EagerContext()
    operands = (quantized(a, 0.5, qint8), quantized(b, 0.25, qint16))
    result = convert_node(ctx, MATMUL, operands).dequantize(ctx)
    assert result.value.array.tolist() == [[1.0]]


def test_long_sums_are_exact_beyond_float32() -> None:
    """Above 1024 products an int8 sum may leave float32's exact range."""
    rng = np.random.default_rng(2)
    a = rng.integers(100, 128, (2, 3000)).astype(np.float32)
    b = rng.integers(100, 128, (3000, 2)).astype(np.float32)
    ctx = EagerContext()
    operands = (quantized(a, 1.0, qint8), quantized(b, 1.0, qint8))
    result = convert_node(ctx, MATMUL, operands).dequantize(ctx)
    assert np.array_equal(result.value.array, (a.astype(np.float64) @ b).astype(np.float32))


def test_clamp_before_the_scale_is_known() -> None:
    operands = (
        quantized(np.array([[4.0], [-4.0]]), 1.0, qint8),
        quantized(np.array([[3.0]]), 1.0, qint8),
    )
    ctx = EagerContext()
    clamped = convert_node(ctx, MATMUL, operands).clamp(ctx, 0.0, 6.0)
    assert clamped.emit(ctx, 0.5, qint8).value.codes.tolist() == [[12], [0]]


def test_operands_with_channel_scales_or_without_scale_are_named() -> None:
    x = quantized(np.ones((2, 2)), 1.0, qint8)
    channels = weight_constant(np.ones((2, 2), np.float32), np.ones(2, np.float32), qint8, 0)
    for wrong in (channels, FloatValue(Val(np.ones((2, 2)))), FloatConst(np.ones((2, 2)))):
        with pytest.raises(ConvertError, match="layer: operand 1 of matmul"):
            convert_node(EagerContext(), MATMUL, (x, wrong))


def test_bayes_multiplies_int8_only() -> None:
    operands = (quantized(np.ones((2, 2)), 1.0, qint8), quantized(np.ones((2, 2)), 1.0, qint16))
    pending = convert_node(EagerContext("bayes"), MATMUL, operands)
    with pytest.raises(MarchError, match="qint8"):
        pending.emit(EagerContext("bayes"), 1.0, qint8)


@pytest.mark.parametrize(
    "call",
    [
        lambda bind, a, b: bind(torch.matmul)(a, other=b),
        lambda bind, a, b: bind(torch.matmul)(input=a, other=b),
        lambda bind, a, b: bind(torch.linalg.matmul)(a, b),
        lambda bind, a, b: bind(torch.bmm)(a, mat2=b),
        lambda bind, a, b: bind(torch.mm)(input=a, mat2=b),
        lambda bind, a, b: bind(operator.matmul)(a, b),
        lambda bind, a, b: bind("matmul")(a, b),
        lambda bind, a, b: bind("bmm")(a, b),
        lambda bind, a, b: bind("mm")(a, mat2=b),
        lambda bind, a, b: bind("__matmul__")(a, b),
        lambda bind, a, b: bind("__rmatmul__")(b, a),
    ],
)
def test_every_spelling_is_one_operator(call: Any) -> None:
    def bind(key: Any) -> Any:
        found = registry.find_method(key) if isinstance(key, str) else registry.find_function(key)
        assert found is not None
        assert found[0].name == "matmul"
        return found[1].bind

    a, b = object(), object()
    assert call(bind, a, b).tensors == (a, b)


def test_linear_with_keywords_only_is_quantized_like_the_module() -> None:
    """A13."""
    found = registry.find_function(F.linear)
    assert found is not None
    entry, target = found
    x, w = torch.randn(2, 4), torch.randn(3, 4)
    assert target.bind(input=x, weight=w).tensors == (x, w, None)
    assert entry.weight_role == "weight"
    module = registry.find_module(nn.modules.linear.NonDynamicallyQuantizableLinear)
    assert module is not None
    assert module[0] is entry


@pytest.mark.parametrize(
    ("shape", "bias", "op_type"),
    [((2, 4), True, "Gemm"), ((2, 4), False, "Gemm"), ((2, 3, 4), True, "Linear"),
     ((4,), False, "LinearNoBias")],
)  # fmt: skip
def test_linear_lowers_to_what_runs_as_torchs_linear(
    shape: tuple[int, ...], bias: bool, op_type: str
) -> None:
    entry = registry.spec("linear")
    tensors = [torch.randn(shape), torch.randn(3, 4), torch.randn(3) if bias else None]
    assert lower(entry, tensors, {}).op_type == op_type


@pytest.mark.parametrize("bias", [True, False])
def test_linear_outside_the_quantized_region_stays_float(bias: bool) -> None:
    from tests.ops.gemm.eager import run_fast, run_reference

    entry = registry.spec("linear")
    tensors = [torch.randn(2, 3, 4), torch.randn(5, 4), torch.randn(5) if bias else None]
    node = lower(entry, tensors, {})
    arrays = [t.numpy() for t in tensors if t is not None]
    expected = F.linear(*[t for t in tensors if t is not None]).numpy()
    np.testing.assert_array_equal(run_reference(node.op_type, arrays, {}), expected)
    constants = range(1, len(arrays))
    fast = run_fast(node.op_type, arrays, {}, "float32", list(constants))
    np.testing.assert_array_equal(fast, expected)

    class FloatOnly(EagerContext):
        def add(self, op_type: str, inputs: Any, attrs: Any = None, **rest: Any) -> Val:
            return Val(run_reference(op_type, [v.array for v in inputs], attrs or {}))

    operands = [FloatValue(Val(arrays[0])), *(FloatConst(a) for a in arrays[1:])]
    result = convert_node(FloatOnly(), node, operands)
    assert isinstance(result, FloatValue)
    np.testing.assert_array_equal(result.value.array, expected)


def test_linear_limits_and_flops() -> None:
    entry = registry.spec("linear")
    assert entry.flops is not None
    assert entry.flops({}, ((2, 3, 10), (4, 10), None), (2, 3, 4)) == 2 * 3 * 4 * 10
    assert all("bernoulli" not in rule.series for rule in entry.march)
    (rule,) = (rule for rule in entry.march if "nash" in rule.series)
    assert rule.check is not None
    assert "outputs is 9000" in (rule.check({}, ((1, 10), (9000, 10)), (1, 9000)) or "")
    assert rule.check({}, ((1, 1280), (1000, 1280)), (1, 1000)) is None


def test_matmul_limits_and_flops() -> None:
    entry = registry.spec("matmul")
    assert entry.flops is not None
    assert entry.flops({}, ((2, 3, 10), (2, 10, 5)), (2, 3, 5)) == 2 * 3 * 5 * 10
    (rule,) = (rule for rule in entry.march if "nash" in rule.series)
    assert rule.check is not None
    assert "batch is 5000" in (rule.check({}, ((5000, 3, 4), (4, 2)), (5000, 3, 2)) or "")
