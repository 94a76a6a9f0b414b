"""Metrics: values, and what they say about degenerate tensors (numerics.md section 5, case A30)."""

from __future__ import annotations

import math

import pytest
import torch

from qtune.errors import ArgumentError
from qtune.profiler.metric import Metric

NAMES = ("ATOL", "L1", "MSE", "COSINE", "SQNR", "RTOL", "KL")
A = torch.tensor([1.0, -2.0, 4.0])
B = torch.tensor([1.5, -2.0, 3.0])


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ATOL", 1.0),
        ("L1", 0.5),
        ("MSE", 1.25 / 3),
        ("COSINE", 17.5 / math.sqrt(21 * 15.25)),
        ("SQNR", 10 * math.log10(21 / 1.25)),
        ("RTOL", 0.5),
    ],
)
def test_values_on_small_tensors(name: str, expected: float) -> None:
    # float64 arithmetic against a float64 formula: only the order of additions differs
    assert Metric.get_metric(name)(A, B) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [0.0, 1.0, math.inf])
def test_identical_tensors_are_perfect(name: str, value: float) -> None:
    """A30."""
    t = torch.full((2, 4), value)
    best = {"COSINE": 1.0, "SQNR": math.inf}.get(name, 0.0)
    assert Metric.get_metric(name)(t, t.clone()) == best


@pytest.mark.parametrize("name", NAMES)
def test_finite_input_never_gives_nan(name: str) -> None:
    """A30: all-zero tensors on either side."""
    zeros, ones = torch.zeros(2, 4), torch.ones(2, 4)
    for a, b in ((zeros, zeros), (ones, ones), (ones, zeros), (zeros, ones)):
        value = Metric.get_metric(name)(a, b)
        assert value is not None
        assert not math.isnan(value)


def test_zero_against_ones() -> None:
    zeros, ones = torch.zeros(4), torch.ones(4)
    assert Metric.COSINE(ones, zeros) == 0.0
    assert Metric.RTOL(zeros, ones) == pytest.approx(3.4028234663852886e38, rel=0)  # exact
    assert Metric.SQNR(zeros, ones) == -math.inf


def test_empty_tensors_are_not_available_and_ranked_last() -> None:
    """A06: n/a, never a NaN that wins the ranking."""
    empty = torch.empty(0, 3)
    for name in NAMES:
        metric = Metric.get_metric(name)
        assert metric(empty, empty) is None
        assert metric.badness(None) < metric.badness(0.0)


def test_nan_is_the_worst_in_either_direction() -> None:
    for name in ("ATOL", "COSINE"):
        metric = Metric.get_metric(name)
        assert metric.badness(math.nan) > metric.badness(1e30 if name == "ATOL" else -1.0)


def test_shape_mismatch_says_both_shapes() -> None:
    with pytest.raises(ArgumentError, match=r"\(3,\) and \(3, 1\)"):
        Metric.ATOL(A, A[:, None])


def test_an_infinity_that_both_sides_share_hides_nothing_from_sqnr() -> None:
    a = torch.tensor([math.inf, 3.0, 4.0])
    b = torch.tensor([math.inf, 3.0, 3.5])
    # float64 arithmetic against the formula on the finite elements
    assert Metric.SQNR(a, b) == pytest.approx(10 * math.log10(25 / 0.25), rel=1e-12)


def test_int8_codes_do_not_wrap_around() -> None:
    low, high = torch.tensor([-128], dtype=torch.int8), torch.tensor([127], dtype=torch.int8)
    assert Metric.ATOL(low, high) == 255.0


def test_registered_metric_is_reachable_by_name_and_by_attribute() -> None:
    try:

        @Metric.register("half_atol", False, "all")
        def half_atol(output1: torch.Tensor, output2: torch.Tensor) -> torch.Tensor:
            return (output1 - output2).abs().max() / 2

        assert Metric.half_atol(A, B) == 0.5
        assert Metric.get_metric("half_atol").scope == "all"
        with pytest.raises(ArgumentError, match="registered already"):
            Metric.register("half_atol", False, "all")
    finally:
        Metric.unregister("half_atol")


def test_a_built_in_metric_stays() -> None:
    with pytest.raises(ArgumentError, match="'L1' is built in; only your own"):
        Metric.unregister("L1")
    assert Metric.L1(A, A) == 0.0
    Metric.unregister("never_registered")


def test_unknown_metric_lists_the_known_ones() -> None:
    with pytest.raises(ArgumentError, match="no metric 'SNR'; registered: ATOL"):
        Metric.get_metric("SNR")
    with pytest.raises(AttributeError, match="no metric"):
        _ = Metric.SNR


def test_infinite_noise_is_the_worst_sqnr() -> None:
    inf = torch.tensor([1.0, math.inf])
    assert Metric.SQNR(torch.ones(2), inf) == -math.inf
    assert math.isnan(Metric.SQNR(inf, torch.ones(2)) or 0.0)


def test_complex_tensors_are_compared_part_by_part() -> None:
    a, b = torch.tensor([3 + 4j]), torch.tensor([3 + 2j])
    assert Metric.ATOL(a, b) == 2.0
    assert Metric.L1(a, b) == 1.0
