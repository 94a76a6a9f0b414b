import numpy as np
import pytest

from qtune.arith.histogram import (
    SMALLEST_WIDTH,
    bin_width,
    doublings,
    magnitude_counts,
    merged,
    stretched,
)

RNG = np.random.default_rng(0)


def test_every_finite_value_is_counted_once():
    data = np.array([0.0, -0.5, 1.0, np.inf, -2.0, np.nan, -np.inf], dtype=np.float32)
    assert magnitude_counts(data, bin_width(2.0, 4), 4).tolist() == [2, 1, 0, 1]


def test_bins_are_closed_above():
    width = bin_width(4.0, 4)
    assert magnitude_counts([1.0, 2.0, 4.0], width, 4).tolist() == [1, 1, 0, 1]
    assert magnitude_counts([np.nextafter(np.float32(1), np.float32(2))], width, 4).tolist() == [
        0,
        1,
        0,
        0,
    ]


@pytest.mark.parametrize("bins", [3, 200, 1000, 2048])
def test_bins_reach_the_value_they_were_made_for(bins):
    """So that the same range again widens nothing."""
    for top in RNG.uniform(0.1, 10, 200).astype(np.float32):
        width = bin_width(top, bins)
        assert doublings(width, bins, top) == 0
        below = np.nextafter(width, np.float32(0))
        assert float(below) * bins < float(top)


@pytest.mark.parametrize("top", [1e-45, 1e-38, 1e-30, 3.4028235e38])
def test_smallest_and_largest_ranges_have_a_width(top):
    width = bin_width(top, 2048)
    assert width >= SMALLEST_WIDTH
    assert magnitude_counts([top], width, 2048).sum() == 1


def test_all_zero_data_lie_in_the_first_bin():
    assert bin_width(0.0, 8) == 0
    assert magnitude_counts(np.zeros(5), np.float32(0), 8).tolist() == [5] + [0] * 7


@pytest.mark.parametrize("bins", [1, 2, 512, 1000, 2048])
@pytest.mark.parametrize("k", [0, 1, 3, 70])
def test_merging_gives_the_histogram_at_the_wider_bins(bins, k):
    """What makes the counts independent of the order in which the range grew."""
    data = RNG.standard_t(2, 3000).astype(np.float32)
    width = bin_width(np.abs(data).max(), bins)
    counts = magnitude_counts(data, width, bins)
    wider = np.float32(np.ldexp(width, k))
    assert np.array_equal(merged(counts, k), magnitude_counts(data, wider, bins))


@pytest.mark.parametrize("ratio", [0.3, 1.0, 1.0000001, 2.0, 2.0000002, 7.5, 1024.0])
def test_doublings_are_the_least_that_reach(ratio):
    width, bins = bin_width(0.7, 512), 512
    top = np.float32(float(width) * bins * ratio)
    k = doublings(width, bins, top)
    assert float(width) * bins * 2**k >= float(top)
    assert k == 0 or float(width) * bins * 2 ** (k - 1) < float(top)


def test_no_range_yet_needs_no_doubling():
    assert doublings(np.float32(0), 512, 3.0) == 0
    assert doublings(np.float32(1), 512, 0.0) == 0


def test_stretching_moves_counts_to_where_their_centres_fall():
    counts = np.arange(8)
    assert stretched(counts, 1.0, 2.0).tolist() == [1, 5, 9, 13, 0, 0, 0, 0]
    assert stretched(counts, 1.0, 1.0).tolist() == counts.tolist()
    assert stretched(counts, 0.0, 1.0).tolist() == [28] + [0] * 7
    assert stretched(counts, 0.9, 1.1).sum() == 28
