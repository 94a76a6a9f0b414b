"""One number per output, under the outputs' names."""

from __future__ import annotations

import pytest
import torch

from qtune.analysis.outputs import pairs, scores
from qtune.errors import AnalysisError
from qtune.profiler.metric import Metric

from .nets import Detection, Pair

A, B = torch.zeros(2), torch.ones(2)


def detection(value: torch.Tensor) -> Detection:
    return Detection(value, {"k": (value * 2, None)}, torch.tensor([1]))


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        (A, B, {"": 1.0}),
        ((A, A), (B, 3 * B), {"0": 1.0, "1": 3.0}),
        ({"a": A, "b": [A, A]}, {"a": B, "b": [B, 2 * B]}, {"a": 1.0, "b-0": 1.0, "b-1": 2.0}),
        (Pair(A, torch.tensor([1])), Pair(B, torch.tensor([2])), {"score": 1.0}),
        (detection(A), detection(B), {"boxes": 1.0, "aux-k-0": 2.0}),
    ],
)
def test_scores_have_the_outputs_names(left: object, right: object, expected: object) -> None:
    """A18; integers have no distance (A16)."""
    assert scores(Metric.ATOL, left, right) == expected


def test_a_flat_list_is_taken_in_order_under_the_baselines_names() -> None:
    assert scores(Metric.ATOL, {"a": A, "b": A}, [B, 2 * B]) == {"a": 1.0, "b": 2.0}


def test_outputs_of_another_order_are_joined_by_name() -> None:
    assert scores(Metric.ATOL, {"a": A, "b": A}, {"b": 2 * B, "a": B}) == {"a": 1.0, "b": 2.0}


def test_different_numbers_of_outputs_are_refused_with_both_names() -> None:
    with pytest.raises(AnalysisError, match=r"\['a', 'b'\] and \[''\]; make them equal"):
        pairs({"a": A, "b": A}, B)


def test_post_process_is_applied_to_both_sides() -> None:
    assert scores(Metric.ATOL, A, B, lambda y: (y + 1) * 3) == {"": 3.0}


def test_empty_outputs_are_not_available() -> None:
    """A06."""
    assert scores(Metric.ATOL, A[:0], B[:0]) == {"": None}
