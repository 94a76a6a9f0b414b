import numpy as np
import pytest
import torch

from qtune.arith.histogram import bin_width, magnitude_counts
from qtune.arith.ranges import least_squares_range, mix_candidates, percentile_range
from qtune.dtype import qint4, qint8, qint16
from qtune.errors import ArgumentError
from qtune.quantizers.batch_histogram import BINS
from qtune.quantizers.mix import MixObserver
from qtune.quantizers.percentile import PercentileObserver
from qtune.quantizers.scope import forward_scope


def binned(data, bins=BINS):
    top = np.abs(data).max()
    width = bin_width(top, bins)
    return magnitude_counts(data, width, bins), width, top


def laplace(seed, size=3000):
    return np.random.default_rng(seed).laplace(0, 1 + seed, size).astype(np.float32)


@pytest.mark.parametrize("percentile", [50.0, 99.0, 99.9])
@pytest.mark.parametrize("bins", [64, 2048, 4096])
def test_the_range_is_the_percentile_of_the_histogram(percentile, bins):
    observer = PercentileObserver(percentile, bins)
    observer(torch.from_numpy(laplace(0)))
    expected = percentile_range(*binned(laplace(0), bins), percentile)
    assert observer.absmax.tolist() == [[expected]] * 3


def test_more_bins_and_another_percentile_change_the_range():
    found = set()
    for percentile, bins in ((99.0, 32), (99.0, 4096), (99.5, 4096)):
        observer = PercentileObserver(percentile, bins)
        observer(torch.from_numpy(laplace(0)))
        found.add(observer.absmax[1].item())
    assert len(found) == 3


def test_later_batches_inside_the_range_move_it_too():
    """A04: the moving average of each batch's percentile, the first sets it."""
    batches = [torch.linspace(-1, 1, 2000), torch.full((20000,), 0.01), torch.tensor([0.5])]
    observer = PercentileObserver(99.0, averaging_constant=0.25)
    expected = None
    for batch in batches:
        observer(batch)
        exact = float(np.percentile(batch.abs().numpy(), 99.0))
        expected = exact if expected is None else expected + 0.25 * (exact - expected)
        # one bin of the widest batch (1 / 2048), and numpy's step between two values (1 / 1000)
        assert observer.absmax[1].item() == pytest.approx(expected, abs=2e-3)


def test_two_calls_of_one_forward_are_their_union_within_a_bin():
    data = torch.from_numpy(laplace(1))
    together, union = PercentileObserver(99.0), PercentileObserver(99.0)
    with forward_scope():
        for part in (data[:1000], data[1000:1001], data[1001:]):
            together(part)
    union(data)
    bin_of_all = float(data.abs().max()) / BINS
    # two bins: calls of one forward join histograms of other widths
    assert together.absmax[1].item() == pytest.approx(union.absmax[1].item(), abs=2 * bin_of_all)


@pytest.mark.parametrize("percentile", [0, -1.0, 100.1, float("nan"), "99", True])
def test_percentile_out_of_range_is_refused(percentile):
    with pytest.raises(ArgumentError, match="percentile"):
        PercentileObserver(percentile)


@pytest.mark.parametrize("bins", [0, 2.5, -1, True, 1 << 30])
def test_bins_out_of_range_are_refused(bins):
    with pytest.raises(ArgumentError, match="bins"):
        PercentileObserver(bins=bins)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_mix_takes_the_percentile_with_the_least_error_for_each_dtype(seed):
    data = np.append(laplace(0, 40000), 80 + 10 * seed).astype(np.float32)
    observer = MixObserver()
    observer(torch.from_numpy(data))
    counts, width, top = binned(data)
    tried = mix_candidates(counts, width, top)
    for row, grid in enumerate((qint4, qint8, qint16)):
        assert observer.absmax[row].item() == least_squares_range(counts, width, tried, grid)
    assert observer.absmax[0].item() < observer.absmax[2].item() == top, "qint4 cuts the outlier"


def test_mix_moves_by_the_constant():
    observer = MixObserver(averaging_constant=0.5)
    singles = []
    for seed in range(3):
        batch = torch.from_numpy(laplace(seed))
        observer(batch)
        single = MixObserver()
        single(batch)
        singles.append(single.absmax)
    first, second, third = singles
    expected = first + 0.5 * (second - first)
    expected = expected + 0.5 * (third - expected)
    assert torch.equal(observer.absmax, expected)
