"""Bias, scales, marches and errors of GEMMs during conversion."""

from __future__ import annotations

from fractions import Fraction
from math import floor
from typing import Any

import numpy as np
import pytest

from qtune.arith.quantize import scale_from_absmax
from qtune.dtype import QuantDType, qint8, qint16
from qtune.errors import ConvertError, MarchError
from qtune.ops.gemm.pending import GemmPending
from qtune.ops.gemm.saturation import count_saturation
from qtune.ops.kernel import FloatConst, FloatValue, QConst
from tests.ops.gemm.eager import (
    EagerContext,
    Emitted,
    Val,
    convert_node,
    quantized,
    run_fast,
    run_ort,
    run_reference,
    weight_constant,
)

Array = np.ndarray[Any, Any]


def linear(
    x: Array,
    w: Array,
    bias: Array | None = None,
    *,
    s_x: float = 1.0,
    s_w: float = 1.0,
    x_dtype: QuantDType = qint8,
    w_dtype: QuantDType = qint8,
) -> GemmPending:
    """A linear on given numbers and scales."""
    weight = w.astype(np.float32)
    scale = np.full(len(weight), s_w, dtype=np.float32)
    return GemmPending(
        name="layer",
        base="QLinear",
        attrs={},
        x=quantized(x.astype(np.float32), s_x, x_dtype),
        weight=weight_constant(weight, scale, w_dtype, 0),
        bias=None if bias is None else bias.astype(np.float32),
    )


def conv_a02() -> tuple[GemmPending, float]:
    """A02's convolution: input scale 0.1, weight scale 1e-8, bias 3.0."""
    x = np.full((1, 1, 2, 2), 12.75, dtype=np.float32)
    w = np.full((1, 1, 1, 1), 1.275e-6, dtype=np.float32)
    s_x = float(scale_from_absmax(12.75, qint8))
    s_w = scale_from_absmax(np.abs(w).max(), qint8).reshape(1)
    pending = GemmPending(
        name="c",
        base="QConv",
        attrs={"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1), "group": 1},
        x=quantized(x, s_x, qint8),
        weight=weight_constant(w, s_w, qint8, 0),
        bias=np.array([3.0], dtype=np.float32),
        trailing=2,
    )
    return pending, s_x


def test_bias_that_does_not_fit_widens_the_weight_scale_and_is_reported() -> None:
    """A02: neither wrapped (-1.295) nor clipped (2.1475)."""
    pending, _ = conv_a02()
    ctx = EagerContext()
    scale = float(scale_from_absmax(3.0, qint8))
    result = pending.emit(ctx, scale, qint8)
    values = result.value.array * scale
    assert np.abs(values - 3.0000163).max() <= scale
    ((kind, message, details),) = ctx.reports
    assert kind == "bias_widened"
    assert message.startswith("c: ")
    assert details["channels"] == [0]
    assert details["scale_after"][0] > details["scale_before"][0]
    bias = ctx.emitted[0][2][2].array
    assert abs(int(bias.reshape(()))) <= 2**30 - 1


def test_high_precision_output_uses_the_widened_scale_too() -> None:
    """A02 on the int32 output."""
    pending, _ = conv_a02()
    result = pending.dequantize(EagerContext())
    # float32 has a step of 2.4e-7 here, the widened accumulator one of 3e-9.
    np.testing.assert_allclose(result.value.array, 3.0 + 12.75 * 1.275e-6, atol=3e-7)


def test_bias_with_an_addend_stays_below_the_limit_together() -> None:
    """numerics.md section 2.2: 128 * s_a counts with the bias."""
    ctx = EagerContext()
    pending = linear(np.ones((1, 2)), np.ones((1, 2)), np.array([0.0]), s_x=1e-3, s_w=1e-6)
    joined = pending.accumulate(ctx, quantized(np.full((1, 1), 100.0), 10.0, qint8))
    assert joined is not None
    result = joined.emit(ctx, 1.0, qint8)
    assert result.value.codes.tolist() == [[100]]
    assert ctx.reports[0][0] == "bias_widened"
    s_w = ctx.reports[0][2]["scale_after"][0]
    assert 128 * 10.0 / (float(np.float32(1e-3)) * s_w) <= 2**30 - 1


def test_int16_by_int16_has_the_48_bit_limit() -> None:
    """numerics.md section 2.2: this bias needs 2**35, fine for a 48-bit accumulator."""
    ctx = EagerContext()
    pending = linear(
        np.ones((1, 2)), np.ones((1, 2)), np.array([8.0]), s_x=2**-16, s_w=2**-16,
        x_dtype=qint16, w_dtype=qint16,
    )  # fmt: skip
    result = pending.emit(ctx, 2**-11, qint16)
    op_type, _, inputs = ctx.emitted[0]
    assert op_type == "QLinear16x16"
    assert inputs[2].array.dtype == np.int64
    assert int(inputs[2].array[0]) == 2**35
    # x and w are clipped to 32767 / 65536 each.
    expected = np.floor((2 * (32767 / 65536) ** 2 + 8.0) * 2**11 + 0.5)
    assert result.value.codes.tolist() == [[expected]]
    assert ctx.reports == []


@pytest.mark.parametrize("m_target", [2.0**-20, 0.3, 40000.0])
def test_48_bit_requantize_agrees_for_small_and_large_multipliers(m_target: float) -> None:
    rng = np.random.default_rng(0)
    x, w = rng.integers(-32768, 32768, (3, 64)), rng.integers(-32768, 32768, (4, 64))
    pending = linear(x, w, x_dtype=qint16, w_dtype=qint16)
    pending.emit(EagerContext(), 1.0 / m_target, qint16)


def test_int32_accumulator_saturates_and_counts_the_same_everywhere() -> None:
    """numerics.md section 2.1: 600 products of extremes leave int32 in both directions."""
    x = np.array([[32767] * 600, [-32768] * 600, [1] * 600], dtype=np.int16)
    w = np.full((2, 600), 127, dtype=np.int8)
    arrays: list[Array] = [x, w, np.zeros(2, np.int32)]
    assert 600 * 32767 * 127 > 2**31
    with count_saturation() as count:
        exact = run_reference("QLinear16x8Acc", arrays, {})
    assert exact.tolist() == [[2**31 - 1] * 2, [-(2**31)] * 2, [600 * 127] * 2]
    assert count.elements == 4
    with count_saturation() as count:
        fast = run_fast("QLinear16x8Acc", arrays, {}, "int32", [1, 2])
    np.testing.assert_array_equal(fast, exact)
    assert count.elements == 4
    np.testing.assert_array_equal(run_ort("QLinear16x8Acc", arrays, {}), exact)


def test_known_code_range_does_not_change_the_result() -> None:
    rng = np.random.default_rng(3)
    x = rng.integers(0, 128, (2, 300)).astype(np.int8)
    w = rng.integers(-128, 128, (5, 300)).astype(np.int8)
    factors = [np.full(5, 20000), np.full(5, 28)]
    arrays: list[Array] = [x, w, np.arange(5, dtype=np.int32), *factors]
    attrs = {"lo": -128, "hi": 127, "to": 3}
    fast = run_fast("QLinear", arrays, attrs, "int8", [1, 2, 3, 4], {0: (0, 127)})
    np.testing.assert_array_equal(fast, run_reference("QLinear", arrays, attrs))


@pytest.mark.parametrize(
    ("march", "x_dtype", "w_dtype", "words"),
    [
        ("bernoulli2", qint16, qint8, "no int16 GEMM"),
        ("bayes", qint8, qint16, "second GEMM operand must be qint8"),
        ("bayes-e", qint16, qint16, "second GEMM operand must be qint8"),
    ],
)
def test_march_refuses_operand_dtypes_by_name(
    march: str, x_dtype: QuantDType, w_dtype: QuantDType, words: str
) -> None:
    pending = linear(np.ones((1, 2)), np.ones((1, 2)), x_dtype=x_dtype, w_dtype=w_dtype)
    with pytest.raises(MarchError, match=f"layer: .*{march}.*{words}"):
        pending.emit(EagerContext(march), 1.0, qint8)


def test_int16_output_on_bernoulli_is_refused() -> None:
    pending = linear(np.ones((1, 2)), np.ones((1, 2)))
    with pytest.raises(MarchError, match="no qint16 output"):
        pending.emit(EagerContext("bernoulli2"), 1.0, qint16)


def test_int16_by_int16_has_no_high_precision_output() -> None:
    """numerics.md section 2.1."""
    pending = linear(np.ones((1, 2)), np.ones((1, 2)), x_dtype=qint16, w_dtype=qint16)
    with pytest.raises(MarchError, match="layer: int16 x int16 has no high-precision"):
        pending.dequantize(EagerContext())


@pytest.mark.parametrize("m_target", [2.0**-20, 0.3, 40000.0])
@pytest.mark.parametrize(("x_dtype", "w_dtype"), [(qint8, qint8), (qint16, qint8)])
def test_31_bit_requantize_rounds_the_exact_product_once(
    x_dtype: QuantDType, w_dtype: QuantDType, m_target: float
) -> None:
    """A22, and one result in reference, fast kernel and ONNX Runtime."""
    rng = np.random.default_rng(0)
    x = rng.integers(x_dtype.qmin, x_dtype.qmax + 1, (30, 64))
    w = rng.integers(-128, 128, (4, 64))
    ctx = EagerContext(high_precision_qpp=True)
    factor = m_target / 3.0
    result = linear(x, w, x_dtype=x_dtype, w_dtype=w_dtype).emit(ctx, 1.0 / factor, qint16)
    ((name, _, values),) = ctx.emitted
    m, n = (int(values[index].array[0]) for index in (3, 4))
    assert name.startswith("QLinear")
    assert 2**30 <= m < 2**31
    exact = [[floor(Fraction(int(a) * m, 2**n) + Fraction(1, 2)) for a in row] for row in x @ w.T]
    np.testing.assert_array_equal(result.value.codes, np.clip(exact, -32768, 32767))


@pytest.mark.parametrize("m_target", [2.0**-20 / 3, 0.1, 40000.0 / 3])
def test_31_bit_requantize_of_48_bits_agrees_everywhere(m_target: float) -> None:
    rng = np.random.default_rng(0)
    x, w = rng.integers(-32768, 32768, (3, 64)), rng.integers(-32768, 32768, (4, 64))
    ctx = EagerContext(level=0, high_precision_qpp=True, fuses_requantize=False)
    linear(x, w, x_dtype=qint16, w_dtype=qint16).emit(ctx, 1.0 / m_target, qint16)
    assert [name for name, _, _ in ctx.emitted] == ["QLinear16x16"]  # no int32 output to take


def test_accumulator_leaves_the_gemm_where_requantize_is_apart() -> None:
    """Consistency level 0; the codes are those of the fused operator."""
    rng = np.random.default_rng(0)
    x, w = rng.integers(-128, 128, (3, 64)), rng.integers(-128, 128, (4, 64))
    codes = []
    for fuses in (True, False):
        ctx = EagerContext(level=0, high_precision_qpp=True, fuses_requantize=fuses)
        pending = linear(x, w).accumulate(ctx, quantized(np.ones((3, 4), np.float32), 0.5, qint8))
        assert pending is not None
        result = pending.clamp(ctx, 0.0, None)
        assert result is not None
        codes.append(result.emit(ctx, 300.7, qint8).value.codes)
        names = [name for name, _, _ in ctx.emitted]
        assert names == (["QLinearAdd"] if fuses else ["QLinearAddAcc", "Requantize"])
    np.testing.assert_array_equal(*codes)


GOOD_X = quantized(np.ones((1, 2), np.float32), 1.0, qint8)
GOOD_W = weight_constant(np.ones((1, 2), np.float32), np.ones(1, np.float32), qint8, 0)


@pytest.mark.parametrize(
    ("operands", "words"),
    [
        ((FloatValue(Val(np.ones(2))), GOOD_W), "must be quantized codes and is a float"),
        ((GOOD_X, FloatConst(np.ones((1, 2)))), "weight of Gemm must be a quantized constant"),
        ((GOOD_X, GOOD_W, FloatValue(Val(np.ones(1)))), "bias of Gemm must be a constant"),
    ],
)
def test_wrong_operands_are_named(operands: tuple[Any, ...], words: str) -> None:
    node = Emitted("Gemm", "", [], {"transB": 1})
    with pytest.raises(ConvertError, match=f"layer: .*{words}"):
        convert_node(EagerContext(), node, operands)


def test_gemm_with_the_weight_as_it_multiplies_is_turned() -> None:
    """ONNX Gemm without transB: weight [in, out], one scale per column."""
    w = np.array([[1.0, 40.0, 3.0], [-2.0, 50.0, 6.0]], dtype=np.float32)
    scale = np.array([0.5, 2.0, 1.0], dtype=np.float32)
    x = quantized(np.array([[1.0, 2.0]], np.float32), 1.0, qint8)
    node = Emitted("Gemm", "", [], {"transB": 0})
    pending = convert_node(EagerContext(), node, (x, weight_constant(w, scale, qint8, 1)))
    assert pending.emit(EagerContext(), 2.0, qint8).value.codes.tolist() == [[-1, 70, 8]]


def test_gemm_with_factors_is_refused() -> None:
    node = Emitted("Gemm", "", [], {"transB": 1, "alpha": 2.0})
    with pytest.raises(ConvertError, match="alpha"):
        convert_node(EagerContext(), node, (GOOD_X, GOOD_W))


def test_weight_with_one_scale_serves_every_channel() -> None:
    w = np.array([[1.0, 2.0], [3.0, 4.0]], dtype=np.float32)
    weight = weight_constant(w, np.ones(1, np.float32), qint8, 0)
    assert isinstance(weight, QConst)
    assert weight.axis == -1
    pending = GemmPending("layer", "QLinear", {}, GOOD_X, weight, None)
    assert pending.emit(EagerContext(), 1.0, qint8).value.codes.tolist() == [[3, 7]]
