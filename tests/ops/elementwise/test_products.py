"""mul, division by a number, and what div and pow are made of."""

from __future__ import annotations

import pytest
import torch

from qtune.dtype import QuantDType, qint8, qint16
from qtune.errors import ConvertError
from qtune.ops.registry import spec
from qtune.ops.spec import Bound

from .rig import Case, Operand, randn

X = randn(2, 3, 5, 4)
Y = randn(2, 3, 5, 4, scale=2.0, seed=1)


@pytest.mark.parametrize("dtypes", [(qint8, qint8), (qint16, qint16), (qint8, qint16)])
@pytest.mark.parametrize("out", [qint8, qint16])
def test_product_is_within_one_step(dtypes: tuple[QuantDType, QuantDType], out: QuantDType) -> None:
    case = Case("mul", [Operand(X, dtypes[0]), Operand(Y, dtypes[1])], out=out)
    assert case.check() <= 1.01  # one step; the distance is measured in floats
    assert case.op_types == ["QMul"]


@pytest.mark.parametrize("factor", [3, 0.25, -1.7, 0, 1e-6])
def test_number_goes_into_the_one_multiplier(factor: float) -> None:
    for operands in ([Operand(X), Operand(factor, None)], [Operand(factor, None), Operand(X)]):
        case = Case("mul", operands)
        assert case.check() <= 1.01
        assert case.op_types == ["Requantize"]


@pytest.mark.parametrize("divisor", [4, 3.0, -0.1])
def test_division_by_a_number_is_a_requantize(divisor: float) -> None:
    case = Case("div_scalar", [Operand(X)], {"divisor": divisor})
    assert case.check() <= 1.01
    assert case.op_types == ["Requantize"]


def test_division_by_zero_is_refused() -> None:
    case = Case("div_scalar", [Operand(X)], {"divisor": 0}, out_scale=1.0)
    with pytest.raises(ConvertError, match="other than 0"):
        _ = case.quantized


def test_square_is_a_product_with_itself() -> None:
    assert Case("mul", [Operand(X), Operand(X)]).check() <= 1.01


def test_broadcast_product_in_channels_last() -> None:
    gate = randn(2, 3, 1, 1, seed=3)
    last = X.contiguous(memory_format=torch.channels_last)
    for operands in ([last, gate], [gate, last]):
        assert Case("mul", [Operand(x) for x in operands]).check() <= 1.01


def test_extreme_codes_of_int16() -> None:
    ends = torch.tensor([-1.0, 1.0, -1.0, 0.0])
    assert Case("mul", [Operand(ends, qint16), Operand(-ends, qint16)], out=qint16).check() <= 1.01


class Recorder:
    """A DecomposeBuilder that lists the calls; nodes are their names, tensors are strings."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []

    def call(self, op, tensors, attrs=None, *, part, forced_dtype=None):  # type: ignore[no-untyped-def]
        self.calls.append((op, tensors, attrs or {}, forced_dtype))
        return part

    def is_tensor(self, value: object) -> bool:
        return isinstance(value, str)

    def shape(self, tensor: object) -> tuple[int, ...]:
        return (2, 3, 4)

    def dtype(self, tensor: object) -> torch.dtype:
        return torch.float32


def decomposed(op: str, *tensors: object, **attrs: object) -> list[tuple[object, ...]]:
    recorder = Recorder()
    decompose = spec(op).decompose
    assert decompose is not None
    decompose(recorder, Bound(tensors, attrs))
    return recorder.calls


def test_division_by_a_tensor_is_a_reciprocal_table_and_a_product() -> None:
    assert decomposed("div", "a", "b") == [
        ("reciprocal", ("b",), {}, qint16),
        ("mul", ("a", "reciprocal"), {}, None),
    ]
    assert decomposed("div", 2, "b")[1] == ("mul", (2, "reciprocal"), {}, None)


def test_division_by_a_number_keeps_one_operator() -> None:
    assert decomposed("div", "a", 4) == [("div_scalar", ("a",), {"divisor": 4}, None)]
    assert decomposed("div", 1, "b") == [("reciprocal", ("b",), {}, None)]


def test_powers() -> None:
    assert decomposed("pow", "a", 2) == [("mul", ("a", "a"), {}, None)]
    assert decomposed("pow", "a", 0.5) == [("sqrt", ("a",), {}, None)]
    assert decomposed("pow", "a", 3) == [("power_to", ("a",), {"exponent": 3.0}, None)]
    assert decomposed("pow", 2, "a") == [("power_of", ("a",), {"base": 2.0}, None)]
    with pytest.raises(NotImplementedError, match="the base or the exponent is a number"):
        decomposed("pow", "a", "b")
