"""One number per output, under the outputs' names."""

from __future__ import annotations

import pytest
import torch

from qtune.analysis.outputs import SHARED_FROM, OutputPair, pairs, scores
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


NAMES = ("L1", "COSINE", "ATOL", "MSE", "SQNR", "RTOL", "KL")


def odd(kind: str) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    a = torch.randn(2, 3, SHARED_FROM // 3 + 1, generator=generator)
    b = a + 0.01 * torch.randn(a.shape, generator=generator)
    if kind == "zero":
        a = torch.zeros_like(a)
    elif kind == "equal":
        b = a.clone()
    elif kind in ("inf", "nan"):
        b[0, 1, 7] = float(kind)
    elif kind == "complex":
        a, b = torch.complex(a, b), torch.complex(b, a)
    elif kind == "small":
        a, b = a[..., :5], b[..., :5]
    elif kind == "empty":
        a, b = a[..., :0], b[..., :0]
    return a, b


@pytest.mark.parametrize(
    "kind", ["plain", "zero", "equal", "inf", "nan", "complex", "small", "empty"]
)
def test_metrics_of_one_pass_are_those_of_each_alone(kind: str) -> None:
    a, b = odd(kind)
    metrics = [Metric.get_metric(name) for name in NAMES]
    found = OutputPair(a, b).all_scores(metrics)
    for metric in metrics:
        value, alone = found[metric.name][""], metric(a, b)
        # float64 sums in another order
        assert value == alone or value == pytest.approx(alone, rel=1e-12, nan_ok=True)


def test_post_process_runs_once_on_each_side() -> None:
    seen: list[float] = []

    def double_in_place(x: torch.Tensor) -> torch.Tensor:
        seen.append(float(x[0]))
        return x.mul_(2)

    found = OutputPair(A.clone(), B.clone(), double_in_place).all_scores([Metric.ATOL, Metric.L1])
    assert seen == [0.0, 1.0]
    assert found == {"ATOL": {"": 2.0}, "L1": {"": 2.0}}


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        (torch.tensor([1, 2, 3, 4]), torch.tensor([1, 0, 3, 0]), 0.5),
        (torch.tensor([True, False]), torch.tensor([True, False]), 1.0),
        (torch.tensor([1]), torch.tensor([1, 2]), 0.0),
        (torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64), None),
    ],
)
def test_integer_and_bool_outputs_match_exactly_or_not(
    left: torch.Tensor, right: torch.Tensor, expected: float | None
) -> None:
    """A16."""
    outputs = OutputPair({"x": A, "ids": left}, {"x": B, "ids": right})
    assert outputs.exact_match() == {"ids": expected}
    assert outputs.scores(Metric.ATOL) == {"x": 1.0}
