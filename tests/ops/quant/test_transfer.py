"""Quantize, Dequantize, DequantizeAcc, Requantize: three implementations, one result."""

from __future__ import annotations

from fractions import Fraction
from math import floor
from typing import Any

import numpy as np
import pytest

from qtune.arith.requantize import multiplier_shift, requantize
from qtune.dtype import QuantDType, qint8, qint16
from qtune.errors import NonFiniteError
from qtune.ops.quant.codes import code_bounds, tighten
from qtune.ops.quant.emit import emit_requantize
from tests.ops.gemm.eager import (
    EagerContext,
    quantized,
    run_all,
    run_fast,
    run_ort,
    run_reference,
)

GRID8 = {"qmin": -128, "qmax": 127, "to": 3}
GRID16 = {"qmin": -32768, "qmax": 32767, "to": 5}
FULL8 = {"lo": -128, "hi": 127, "to": 3}
FULL16 = {"lo": -32768, "hi": 32767, "to": 5}


def scalar(value: Any, dtype: Any = np.int64) -> Any:
    return np.array(value, dtype=dtype)


@pytest.mark.parametrize("op_type", ["Quantize", "QuantizeHalfEven"])
@pytest.mark.parametrize("attrs", [GRID8, GRID16])
def test_quantize_agrees_on_every_kind_of_value(op_type: str, attrs: dict[str, int]) -> None:
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((2, 3, 9, 7)) * 40).astype(np.float32)
    x.reshape(-1)[:4] = [np.inf, -np.inf, 3e38, -0.0]
    x.reshape(-1)[4:8] = np.array([2.5, 3.5, -2.5, 127.5]) * np.float32(0.3)
    run_all(op_type, [x, scalar(0.3, np.float32)], attrs, [1])


def test_ties_go_up() -> None:
    """A21: half up, and to even for imported nodes only."""
    t = np.array([0.5, 1.5, 2.5, -0.5, -1.5, -2.5], np.float32)
    one = scalar(1.0, np.float32)
    assert run_all("Quantize", [t, one], GRID8, [1]).tolist() == [1, 2, 3, 0, -1, -2]
    assert run_all("QuantizeHalfEven", [t, one], GRID8, [1]).tolist() == [0, 2, 2, 0, -2, -2]


@pytest.mark.parametrize("op_type", ["Quantize", "QuantizeHalfEven"])
def test_quantize_of_nan_raises_on_both_kernels(op_type: str) -> None:
    """A03."""
    arrays = [np.array([0.0, np.nan], np.float32), scalar(1.0, np.float32)]
    with pytest.raises(NonFiniteError, match="NaN"):
        run_reference(op_type, arrays, GRID8)
    with pytest.raises(NonFiniteError, match="NaN"):
        run_fast(op_type, arrays, GRID8, "int8", [1])


@pytest.mark.parametrize("dtype", [qint8, qint16], ids=str)
def test_dequantize_agrees_on_every_code(dtype: QuantDType) -> None:
    codes = np.arange(dtype.qmin, dtype.qmax + 1).astype(f"int{dtype.bits}")
    run_all("Dequantize", [codes, scalar(0.0234853, np.float32)], {}, [1])


def test_dequantize_acc_multiplies_in_double_and_rounds_once() -> None:
    """numerics.md section 1, row qint32."""
    rng = np.random.default_rng(1)
    acc = rng.integers(-(2**31), 2**31, (2, 3, 4, 5)).astype(np.int32)
    s_w = rng.uniform(1e-4, 1e-2, (3, 1, 1)).astype(np.float32)
    run_all("DequantizeAcc", [acc, scalar(0.1, np.float32), s_w], {}, [1, 2])


SHIFTS = [-3, 0, 1, 7, 15, 30, 45, 46, 47, 70]


@pytest.mark.parametrize("n", SHIFTS)
@pytest.mark.parametrize("m", [1 << 14, 32767, -20001])
def test_requantize_agrees_at_every_shift(m: int, n: int) -> None:
    codes = np.arange(-32768, 32768, 97, dtype=np.int16)
    result = run_all("Requantize", [codes, scalar(m), scalar(n)], FULL16, [1, 2])
    exact = [floor(Fraction(int(q) * m) / Fraction(2) ** n + Fraction(1, 2)) for q in codes]
    np.testing.assert_array_equal(result, np.clip(exact, -32768, 32767))


def test_requantize_keeps_to_its_bounds() -> None:
    codes = np.arange(-128, 128).astype(np.int8)
    attrs = {"lo": 0, "hi": 60, "to": 3}
    result = run_all("Requantize", [codes, scalar(1 << 14), scalar(14)], attrs, [1, 2])
    assert (result.min(), result.max()) == (0, 60)


@pytest.mark.parametrize("n", [-3, 0, 1, 20, 46, 62, 63, 90])
def test_wide_requantize_body_agrees_at_every_shift(n: int) -> None:
    """The body that batch norm and the 48-bit GEMMs call."""
    rng = np.random.default_rng(2)
    acc = rng.integers(-(2**47), 2**47, 200)
    acc[:6] = [0, 1, -1, 2**47 - 1, -(2**47), 3]
    m, bias = 32767, 12345
    arrays = [acc, scalar(m), scalar(bias), scalar(n)]
    result = run_ort("RequantizeWide", arrays, FULL16)
    exact = [floor(Fraction(int(a) * m + bias) / Fraction(2) ** n + Fraction(1, 2)) for a in acc]
    np.testing.assert_array_equal(result, np.clip(exact, -32768, 32767))


@pytest.mark.parametrize("n", [-3, 0, 1, 15, 16, 17, 25, 31, 40, 61, 62, 63, 90])
@pytest.mark.parametrize("m", [1 << 30, 2**31 - 1, -1302661570])
def test_requantize_body_takes_31_bit_multipliers(m: int, n: int) -> None:
    """Of an int32 accumulator, rounded once (A22)."""
    acc = np.random.default_rng(3).integers(-(2**31), 2**31, 300)
    acc[:7] = [7860, 0, 1, -1, 2**31 - 1, -(2**31), 3]
    arrays = [acc.astype(np.int32), scalar(m), scalar(n)]
    exact = [floor(Fraction(int(a) * m) / Fraction(2) ** n + Fraction(1, 2)) for a in acc]
    expected = np.clip(exact, -32768, 32767)
    np.testing.assert_array_equal(run_ort("Requantize", arrays, FULL16), expected)
    np.testing.assert_array_equal(requantize(acc, m, n, qint16), expected)


@pytest.mark.parametrize("n", [-3, 0, 1, 20, 24, 25, 26, 46, 62, 77, 78, 79, 90])
@pytest.mark.parametrize("m", [1 << 30, 2**31 - 1, -1302661570, 32767, -20001])
def test_limbs_body_requantizes_48_bits_by_31(m: int, n: int) -> None:
    acc = np.random.default_rng(4).integers(-(2**47), 2**47, 300)
    acc[:8] = [0, 1, -1, 2**47 - 1, -(2**47), 3, 2**24 - 1, -(2**24)]
    arrays = [acc.astype(np.float64), scalar(m), scalar(n)]
    exact = [floor(Fraction(int(a) * m) / Fraction(2) ** n + Fraction(1, 2)) for a in acc]
    expected = np.clip(exact, -32768, 32767)
    np.testing.assert_array_equal(run_ort("RequantizeLimbs", arrays, FULL16), expected)
    np.testing.assert_array_equal(requantize(acc, m, n, qint16), expected)


def test_requantize_between_scales_is_within_one_step_and_knows_its_range() -> None:
    x = np.linspace(-3, 3, 1000, dtype=np.float32)
    ctx = EagerContext()
    codes = quantized(x, 6 / 65535, qint16)
    result = emit_requantize(ctx, codes, 0.03, qint8)
    ideal = np.floor(codes.value.codes * (6 / 65535) / 0.03 + 0.5)
    assert np.abs(result.value.codes - ideal).max() <= 1
    assert (result.code_min, result.code_max) == (-100, 100)


def test_published_multiplier() -> None:
    """numerics.md section 2.3."""
    assert multiplier_shift(0.1 * 1.0 / 0.20284509658813477) == (32308, 16)


def test_bounds_in_codes() -> None:
    assert code_bounds(0.0, 6.0, 0.1, qint8) == (0, 60)
    assert code_bounds(None, 6.0, 0.01, qint8) == (-128, 127)
    assert code_bounds(None, None, 0.1, qint16) == (-32768, 32767)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ((None, None), (0.0, None), (0.0, None)),
        ((0.0, None), (None, 6.0), (0.0, 6.0)),
        ((0.0, 6.0), (1.0, 3.0), (1.0, 3.0)),
        ((0.0, 6.0), (7.0, 9.0), (7.0, 7.0)),
        ((0.0, 6.0), (None, -1.0), (-1.0, -1.0)),
    ],
)
def test_second_clamp_tightens_the_first(first: Any, second: Any, expected: Any) -> None:
    assert tighten(*first, *second) == expected
    for value in np.linspace(-2, 10, 25):
        low, high = (-np.inf if first[0] is None else first[0]), first[1] or np.inf
        once = min(max(value, low), high)
        low, high = (-np.inf if second[0] is None else second[0]), second[1]
        twice = min(max(once, low), np.inf if high is None else high)
        low, high = expected
        direct = min(max(value, -np.inf if low is None else low), np.inf if high is None else high)
        assert twice == direct
