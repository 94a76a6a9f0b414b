"""Bounds carried from node to node hold, and are near to what calls show."""

from __future__ import annotations

import pytest
import torch

from qtune.dtype import quant_dtype
from qtune.testing.fuzzing import OperatorCall, first_difference
from qtune.testing.fuzzing.bars import ROUNDED, bar
from qtune.testing.fuzzing.propagation import error_bounds

# The weight is half an int8 step beyond its grid: the sum leaves the calibrated range by
# 1 / 255, on which the int16 table of tanh holds its border's value.
BEYOND_THE_TABLE = OperatorCall(
    "rnn",
    (torch.full((1, 1, 1), 0.125), None, torch.tensor([[0.1875]]), torch.tensor([[2.0469]])),
    attrs={
        "num_layers": 1, "bias": False, "batch_first": False, "dropout": 0.0,
        "bidirectional": False, "training": False, "nonlinearity": "tanh", "flat": True,
    },
    dtype="qint16",
)  # fmt: skip
TWO_PRODUCTS = OperatorCall(
    "multi_dot",
    (
        torch.tensor([[0.640625, -0.203125]]),
        torch.tensor([[-0.953125], [-2.609375]]),
        torch.tensor([[-0.6875]]),
    ),
    dtype="qint16",
    march="bayes-e",  # whose products take int8: an int16 operand on a border may take either code
)


@pytest.mark.parametrize(
    ("call", "seen", "allowed"),
    # seen: what the integer rules give; allowed: near that, and a quarter of the grid where one
    # int8 code of an operand is many steps of a result near 0
    [(BEYOND_THE_TABLE, 128, 140), (TWO_PRODUCTS, 255, 16384)],
    ids=["table", "products"],
)
def test_bar_is_above_what_is_seen_and_says_something(
    call: OperatorCall, seen: int, allowed: int
) -> None:
    line = call.line()
    found = first_difference(line.run(), line.fake_quant(), line.steps)
    limit = bar(call.entry, quant_dtype(call.dtype), line.prepared, call.inputs)
    assert found is not None
    assert round(found.distance) == seen
    assert seen <= limit + ROUNDED <= allowed


def test_bound_of_one_linear_step_is_one_rounding() -> None:
    weight, x = torch.tensor([[1.0, -0.5]]), torch.tensor([[0.5, 0.25]])
    line = OperatorCall("linear", (x, weight, None)).line()
    # the bound is added up in float64, the scale is a float32
    assert error_bounds(line.prepared, (x,)) == pytest.approx([line.steps[0]])


def test_part_without_a_rule_is_named() -> None:
    line = OperatorCall("exp", (torch.ones(1),)).line()
    with pytest.raises(NotImplementedError, match="no rule for the error of exp"):
        error_bounds(line.prepared, (torch.ones(1),))
