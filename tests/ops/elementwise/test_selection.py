"""maximum, minimum, where, masked_fill: a choice over a common shift (numerics.md section 3)."""

from __future__ import annotations

import pytest
import torch

from qtune.dtype import QuantDType, qint8, qint16

from .rig import Case, Operand, randn

X = randn(2, 3, 5, 4)
Y = randn(2, 3, 5, 4, scale=2.0, seed=1)
MASK = randn(5, 4, seed=2) > 0
DTYPES = [(qint8, qint8), (qint16, qint16), (qint8, qint16)]


@pytest.mark.parametrize("op", ["maximum", "minimum"])
@pytest.mark.parametrize("dtypes", DTYPES)
def test_extremum_compares_over_a_common_shift(
    op: str, dtypes: tuple[QuantDType, QuantDType]
) -> None:
    case = Case(op, [Operand(X, dtypes[0]), Operand(Y, dtypes[1])], out=dtypes[1])
    # One multiplier of 15 bits: up to one step beside the fake-quantized value.
    assert case.check() <= 1.01
    assert Case(op, [Operand(X), Operand(Y[:, :1, :1])]).check() <= 1.01


@pytest.mark.parametrize("dtypes", DTYPES)
def test_where_chooses_tensors_and_numbers(dtypes: tuple[QuantDType, QuantDType]) -> None:
    x, y = Operand(X, dtypes[0]), Operand(Y[:, :1], dtypes[1])
    for chosen in ([x, y], [x, Operand(-1.5, None)], [Operand(0.0, None), y]):
        case = Case("where", [Operand(MASK, None), *chosen], out=dtypes[1])
        assert case.check() <= 1.01
        assert case.op_types == ["QWhere"]


def test_masked_fill_keeps_what_is_not_masked() -> None:
    """A16: masks have no scale, the filled number has none either."""
    case = Case("masked_fill", [Operand(X), Operand(MASK, None), Operand(0.0, None)])
    assert case.check() <= 1.01
    assert torch.equal(case.run_integer() == 0, case.expected == 0)


def test_infinite_fill_saturates() -> None:
    operands = [Operand(X), Operand(MASK, None), Operand(float("-inf"), None)]
    case = Case("masked_fill", operands, out_scale=0.02)
    filled = case.run_integer()[MASK.expand_as(X)]
    assert set(filled.tolist()) == {float(torch.tensor(-128 * case.scale))}


def test_mask_made_from_codes_feeds_where() -> None:
    """A16: where(x > 0, a, b) with a constant mask in the file."""
    case = Case("where", [Operand(MASK, None, constant=True), Operand(X), Operand(Y)])
    assert case.check() <= 1.01


def test_zeros_are_chosen_without_a_report() -> None:
    zeros = Operand(torch.zeros_like(X), constant=True)
    for op in ("maximum", "minimum"):
        case = Case(op, [Operand(X), zeros])
        assert case.check() <= 1.01
        assert case.quantized.report == ()


def test_choice_of_integers_stays_as_it_is() -> None:
    ids = torch.arange(20).view(5, 4)
    case = Case("where", [Operand(MASK, None), Operand(ids, None), Operand(ids.flip(0), None)])
    assert case.check() == 0
    assert case.run_integer().dtype == torch.int64
