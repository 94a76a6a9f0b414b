"""x[...] = value where a mask or indices choose, and triangles: every implementation agrees."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from qtune.dtype import QuantDType
from qtune.ops.movement.indexing import canonical_index
from tests.ops.elementwise.rig import Case, Operand, randn

from .pipeline import DTYPES

X = randn(2, 5, 4, 6)
ROWS = torch.tensor([3, 0])
MASK = torch.tensor([True, False, False, True])


def assign(index: Any, value: Any, dtype: QuantDType, *, constant: bool = False) -> Case:
    items, tensors = canonical_index(index)
    given = value if isinstance(value, float) else Operand(value, dtype)
    operand = Operand(given, None) if isinstance(given, float) else given
    chosen = [Operand(tensor, None, constant=constant) for tensor in tensors]
    return Case("setitem", [Operand(X, dtype), operand, *chosen], {"index": items}, out=dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("index", "value", "constant"),
    [
        ((..., X[0, 0] > 0), 1.5, False),
        (X > 0.5, -1.0, False),
        ((slice(None), X[0, ..., 0] > 0), 0.25, False),
        (X[..., 0, 0] > 0, torch.tensor(2.0), False),
        ((slice(None), slice(None), MASK), randn(5, 2, 6, seed=1), True),
        ((slice(None), [1, -1]), 0.5, False),
        ((slice(None), [1, -1]), randn(2, 2, 4, 6, seed=1), False),
        ((..., ROWS), randn(4, 1, seed=1), True),
        ((slice(None), ROWS), 0.5, True),
    ],
)
def test_what_is_chosen_gets_the_value(
    index: Any, value: Any, constant: bool, dtype: QuantDType
) -> None:
    case = assign(index, value, dtype, constant=constant)
    assert case.check() <= 1.01  # rescaled to the result's scale: cat's bar, 1 near a tie
    expected = X.clone()
    expected[index] = value
    # Two quantizes, half a step each, and one rescale.
    assert (case.run_integer() - expected).abs().max() <= 2.5 * case.scale


def test_the_last_value_of_an_index_given_twice_wins() -> None:
    values = torch.stack([torch.zeros(4, 6), torch.ones(4, 6)])
    case = assign((slice(None), [2, 2]), values, DTYPES[0])
    assert bool((case.run_integer()[:, 2] - 1).abs().max() <= case.scale)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("op", ["tril", "triu"])
def test_the_other_triangle_is_zero(op: str, dtype: QuantDType) -> None:
    for diagonal in (-2, 0, 3):
        case = Case(op, [Operand(X + 3, dtype)], {"diagonal": diagonal})
        assert case.check() == 0
        assert case.op_types == ["QTrilu"]
