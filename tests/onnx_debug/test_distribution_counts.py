"""Histograms of streams: exact counts, whatever the order and the range."""

from __future__ import annotations

import numpy as np
import pytest

from qtune.onnx_debug.distribution_counts import MOST_BINS, Counts


def counted(*arrays: np.ndarray) -> Counts:
    counts = Counts()
    for array in arrays:
        counts.add(array)
    return counts


def test_the_counts_are_those_of_numpy_on_the_same_edges() -> None:
    rng = np.random.default_rng(0)
    parts = [rng.normal(0, 10.0**k, 1000).astype(np.float32) for k in (-3, 1, 0)]
    edges, counts = counted(*parts).shown(100)
    expected, _ = np.histogram(np.concatenate(parts), edges)
    assert counts.tolist() == expected.tolist()
    assert 50 <= counts.size <= 100


def test_order_and_partition_make_no_difference() -> None:
    rng = np.random.default_rng(1)
    parts = [rng.normal(k, 10.0**k, 50) for k in range(-4, 3)]
    one, other = counted(*parts), counted(*(p[::-1] for p in parts[::-1]))
    assert one.exponent == other.exponent
    assert one.first == other.first
    assert one.bins.tolist() == other.bins.tolist()
    assert one.bins.size <= MOST_BINS


def test_a_narrow_range_far_from_zero_has_fine_bins() -> None:
    edges, counts = counted(np.linspace(1000.0, 1000.1, 5000)).shown(128)
    assert counts.size >= 50
    assert edges[0] <= 1000.0 < 1000.1 <= edges[-1]


@pytest.mark.parametrize("value", [0.0, 5.0, -1e-40, 3e38, 1e300])
def test_one_value_is_one_bin(value: float) -> None:
    counts = counted(np.full(7, value), np.full(2, value))
    assert counts.shown(10)[1].tolist() == [9]
    assert counts.largest == value


def test_the_largest_keeps_its_sign() -> None:
    assert counted(np.array([-3.0, 2.0])).largest == -3.0
    assert counted(np.array([-3, 3])).largest == 3.0


def test_what_is_not_finite_is_counted_apart() -> None:
    counts = counted(np.array([np.nan, np.inf, 1.0]), np.array([-np.inf]))
    assert (counts.lost, counts.total, counts.most) == (3, 1, 1.0)


def test_nothing_gives_nothing() -> None:
    counts = counted(np.zeros(0), np.array([np.nan]))
    assert counts.shown(10)[1].size == 0
    assert counts.largest == 0.0
