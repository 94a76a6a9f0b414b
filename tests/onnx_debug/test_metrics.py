"""The five metrics by their formulas, and where these have no value."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from qtune.errors import ArgumentError
from qtune.onnx_debug.metrics import METRICS, metric, metrics

A = np.array([1.0, -2.0, 0.0, 4.0], np.float32)
B = np.array([1.5, -2.0, 1.0, 3.0], np.float32)
ZERO = np.zeros(4, np.float32)
PERFECT = {"cosine-similarity": 1.0, "mse": 0.0, "mre": 0.0, "sqnr": math.inf, "chebyshev": 0.0}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cosine-similarity", 17.5 / math.sqrt(21 * 16.25)),
        ("mse", 2.25 / 4),
        ("mre", (0.5 / 1 + 0 / 2 + 1 / (1.75 / 1000) + 1 / 4) / 4),
        ("sqnr", 10 * math.log10(21 / 2.25)),
        ("chebyshev", 1.0),
    ],
)
def test_the_formula(name: str, value: float) -> None:
    assert METRICS[name].value(A, B) == pytest.approx(value, rel=1e-12)  # float64


@pytest.mark.parametrize("name", METRICS)
@pytest.mark.parametrize("array", [A, ZERO, np.array([np.inf, 1.0], np.float32)])
def test_equal_tensors_are_perfect(name: str, array: Any) -> None:
    assert METRICS[name].value(array, array.copy()) == PERFECT[name] == METRICS[name].perfect


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cosine-similarity", 0.0),
        ("mse", 14.25 / 4 + 0.5),
        ("mre", math.inf),
        ("sqnr", -math.inf),
        ("chebyshev", 3.0),
    ],
)
def test_all_zero_against_something_is_not_perfect(name: str, value: float) -> None:
    expected = {"mse": float(np.mean(B.astype(np.float64) ** 2))}.get(name, value)
    # float64, a few roundings of sums
    assert METRICS[name].value(ZERO, B) == pytest.approx(expected)


@pytest.mark.parametrize("name", METRICS)
@pytest.mark.parametrize("side", [0, 1])
def test_nan_is_never_perfect_and_the_worst(name: str, side: int) -> None:
    pair = [A.copy(), A.copy()]
    pair[side][1] = np.nan
    value = METRICS[name].value(*pair)
    assert value is not None
    assert math.isnan(value)
    others = [METRICS[name].value(A, B), METRICS[name].perfect]
    assert METRICS[name].badness(value) > max(METRICS[name].badness(v) for v in others if v)
    assert math.isnan(METRICS[name].worst({"p": A, "q": pair[0]}, {"p": A, "q": pair[1]}))


@pytest.mark.parametrize("name", METRICS)
def test_one_infinity_is_never_perfect(name: str) -> None:
    other = A.copy()
    other[0] = np.inf
    value = METRICS[name].value(A, other)
    assert value is not None
    assert METRICS[name].badness(value) > METRICS[name].badness(METRICS[name].perfect)


def test_an_infinity_on_both_sides_counts_as_equal() -> None:
    a, b = (np.append(side, np.float32(np.inf)) for side in (A, B))
    assert METRICS["mre"].value(a, b) == pytest.approx(METRICS["mre"].value(A, B) * 4 / 5)  # type: ignore[operator]


def test_integers_and_truth_values_are_compared() -> None:
    for dtype in (np.int64, np.uint8, np.uint16, np.bool_):
        a, b = np.array([1, 0, 1], dtype), np.array([1, 1, 1], dtype)
        assert METRICS["chebyshev"].value(a, b) == 1.0
        # float64, a few roundings of sums
        assert METRICS["mse"].value(a, b) == pytest.approx(1 / 3)


def test_empty_outputs_do_not_count() -> None:
    empty = np.zeros((0, 3), np.float32)
    assert METRICS["mse"].value(empty, empty) is None
    assert METRICS["mse"].worst({"e": empty, "a": A}, {"e": empty, "a": B}) == 2.25 / 4


@pytest.mark.parametrize("name", METRICS)
def test_the_mean_of_a_nan_is_one(name: str) -> None:
    assert METRICS[name].mean([1.0, 2.0]) == 1.5
    assert math.isnan(METRICS[name].mean([1.0, math.nan, math.inf]))


def test_an_item_without_an_error_hides_no_sqnr_of_the_others() -> None:
    assert METRICS["sqnr"].mean([math.inf, 10.0, 20.0]) == 15.0
    assert METRICS["sqnr"].mean([math.inf, -math.inf]) == -math.inf
    assert METRICS["sqnr"].mean([math.inf, math.inf]) == math.inf
    assert METRICS["chebyshev"].mean([math.inf, 1.0]) == math.inf


def test_names_are_checked() -> None:
    assert [m.name for m in metrics(["mse", "mre", "mse"])] == ["mse", "mre"]
    with pytest.raises(
        ArgumentError, match="metric: expected one of .* got 'cosine-similarty'; did"
    ):
        metric("cosine-similarty")
