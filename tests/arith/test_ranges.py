import math

import numpy as np
import pytest

from qtune.arith.histogram import bin_width, magnitude_counts
from qtune.arith.quantize import fake_quantize, scale_from_absmax
from qtune.arith.ranges import (
    divergence,
    kl_range,
    least_squares_range,
    mix_candidates,
    mse_candidates,
    percentile_range,
    squared_error,
)
from qtune.dtype import qint4, qint8, qint16


def outlier(size=4000, far=4.0):
    bulk = np.random.default_rng(0).normal(0, 0.2, size)
    return np.append(bulk, far).astype(np.float32)


def binned(data, bins=2048):
    top = np.float32(np.abs(data).max())
    width = bin_width(top, bins)
    return magnitude_counts(data, width, bins), width, top


@pytest.mark.parametrize("percentile", [10.0, 50.0, 99.0, 99.9, 99.99, 100.0])
@pytest.mark.parametrize("size", [1, 7, 1000, 20000])
def test_percentile_is_the_sorted_one_within_a_bin(percentile, size):
    data = np.random.default_rng(size).laplace(0, 1, size).astype(np.float32)
    counts, width, top = binned(data)
    rank = max(math.ceil(round(size * percentile / 100, 6)), 1)
    exact = np.sort(np.abs(data))[rank - 1]
    found = percentile_range(counts, width, top, percentile)
    assert exact <= found <= min(exact + width * 1.001, top)  # float32 rounding of the edge


def test_hundredth_percentile_is_the_largest_value_itself():
    data = np.array([0.1, 0.2, 0.7], dtype=np.float32)
    assert percentile_range(*binned(data, 5), 100.0) == np.float32(0.7)


def test_a_share_that_is_a_whole_count_takes_that_count():
    """99.9 % of 1000 is 999 values although 99.9 is no binary number."""
    assert percentile_range([999, 1], 1.0, 2.0, 99.9) == 1.0
    assert percentile_range([998, 2], 1.0, 2.0, 99.9) == 2.0


def test_squared_error_is_that_of_fake_quantize_at_the_centres():
    counts, width, top = binned(outlier(), 64)
    centres = (np.arange(64, dtype=np.float32) + np.float32(0.5)) * width
    scale = scale_from_absmax(np.float32(1.5), qint8)
    error = (fake_quantize(centres, scale, qint8) - centres).astype(np.float64)
    assert squared_error(counts, width, 1.5, qint8) == (error**2 * counts).sum()


def test_candidates_go_down_by_hundredths():
    assert mse_candidates(2.0, 25).tolist() == [2.0, 1.5, 1.0, 0.5]
    assert mse_candidates(2.0, 1).size == 100
    largest = np.finfo(np.float32).max
    assert mse_candidates(largest, 50).tolist() == [largest, np.float32(largest / 2)]


def test_first_of_equal_candidates_wins():
    counts, width, top = binned(np.zeros(4, dtype=np.float32))
    assert least_squares_range(counts, width, [2.0, 1.0], qint8) == 2.0


def test_mix_keeps_one_of_its_percentiles():
    counts, width, top = binned(outlier())
    tried = mix_candidates(counts, width, top)
    assert tried[0] == top
    assert (np.diff(tried) <= 0).all()
    errors = [squared_error(counts, width, t, qint8) for t in tried]
    assert least_squares_range(counts, width, tried, qint8) == tried[int(np.argmin(errors))]


def textbook_divergence(counts, kept, grid):
    """The definition written down once more, bin by bin."""
    p = [int(c) for c in counts[:kept]]
    p[-1] += int(sum(counts[kept:]))
    half = (grid.qmax - grid.qmin) / 2
    code = [min(math.floor((j + 0.5) / kept * half + 0.5), grid.qmax) for j in range(kept)]
    q = []
    for j in range(kept):
        group = [i for i in range(kept) if code[i] == code[j]]
        total = max(sum(int(counts[i]) for i in group), 1)
        q.append(total / sum(p[i] > 0 for i in group) if p[j] > 0 else 0.0)
    return sum(
        a / sum(p) * math.log(a / sum(p) / (b / sum(q))) for a, b in zip(p, q, strict=True) if a
    )


@pytest.mark.parametrize("kept", [128, 129, 150, 199, 200])
def test_divergence_is_the_written_definition(kept):
    counts, _, _ = binned(outlier(600), 200)
    # 1e-12: sums of 200 terms in another order
    assert divergence(counts, kept, qint8) == pytest.approx(
        textbook_divergence(counts, kept, qint8), abs=1e-12
    )


def test_divergence_is_never_negative_and_zero_where_nothing_is_lost():
    counts = np.arange(1, 129)
    assert divergence(counts, 128, qint16) == pytest.approx(0, abs=1e-12)  # rounding of logarithms
    counts, _, _ = binned(outlier(), 512)
    assert min(divergence(counts, kept, qint8) for kept in range(128, 513, 16)) > -1e-12


def test_kl_cuts_a_lone_outlier_and_keeps_an_even_spread():
    assert kl_range(*binned(outlier(), 512), qint8) < 1.1
    even = np.linspace(-1, 1, 20001, dtype=np.float32)
    assert kl_range(*binned(even, 512), qint8) == 1.0


@pytest.mark.parametrize("value", [0.0, 3.0, 1e-30])
def test_kl_of_constant_data_is_their_value(value):
    """Every range is as good: of equal ones the larger."""
    data = np.full(1000, value, dtype=np.float32)
    for grid in (qint4, qint8, qint16):
        assert kl_range(*binned(data, 512), grid) == np.float32(value)


def test_kl_with_more_codes_than_bins_keeps_everything():
    assert kl_range(*binned(outlier(), 512), qint16) == 4.0


def test_kl_tries_no_range_with_fewer_bins_than_codes():
    counts, width, top = binned(outlier(4000, far=40.0), 512)
    assert kl_range(counts, width, top, qint8) >= np.float32(128) * width
    assert kl_range(counts, width, top, qint4) >= np.float32(8) * width
