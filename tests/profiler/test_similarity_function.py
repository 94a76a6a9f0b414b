"""The similarity functions of the older tools."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from qtune.errors import ArgumentError
from qtune.profiler import Metric
from qtune.profiler.similarity_function import similarity

A = torch.tensor([[1.0, 2.0, -3.0]])
B = torch.tensor([[1.0, 2.5, -3.0]])
ZERO = torch.zeros(1, 3)


@pytest.mark.parametrize("name", ["Cosine", "MSE", "L1", "KL", "SQNR"])
def test_the_documented_names_are_the_metrics(name: str) -> None:
    found = similarity(name, "here")
    metric = Metric.get_metric(name.upper())
    assert found(A, B) == metric(A, B)
    assert (found.name, found.larger_is_better) == (name, metric.ascending)


def test_the_cosine_of_an_all_zero_tensor_is_zero_and_the_sqnr_of_equal_ones_inf() -> None:
    assert similarity("Cosine", "here")(ZERO, ZERO) == 0.0
    assert similarity("Cosine", "here")(A, ZERO) == 0.0
    assert similarity("SQNR", "here")(A, A) == math.inf
    assert Metric.COSINE(ZERO, ZERO) == 1.0  # the metric itself has another rule


def test_thresholds_look_to_the_bad_side() -> None:
    cosine, l1 = similarity("Cosine", "here"), similarity("L1", "here")
    assert cosine.is_bad(0.9, None)
    assert not cosine.is_bad(0.9, 0.8)
    assert l1.is_bad(2.0, None)
    assert not l1.is_bad(2.0, 3.0)
    assert cosine.is_bad(math.nan, None)
    assert not cosine.is_bad(None, None)
    own = similarity(lambda a, b: (a - b).abs().max(), "here")
    assert own(A, B) == 0.5
    assert not own.is_bad(1e9, None)  # nothing is known of it
    assert own.is_bad(2.0, 1.0)


def test_metrics_and_indices() -> None:
    assert similarity(Metric.ATOL, "here")(A, B) == 0.5
    assert similarity("RTOL", "here").name == "RTOL"
    index = torch.tensor([1, 2])
    assert similarity("L1", "here")(index, index) is None


@pytest.mark.parametrize("given", ["cos", 3, None])
def test_other_functions_are_refused(given: Any) -> None:
    with pytest.raises(ArgumentError, match="here: similarity_func must be"):
        similarity(given, "here")
