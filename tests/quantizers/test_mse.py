import numpy as np
import pytest
import torch

from qtune.dtype import qint8, qint16
from qtune.errors import ArgumentError
from qtune.quantizers.mse import BINS, HistogramSummary, MSEObserver, histogram, rebin
from qtune.quantizers.scope import forward_scope


def search(data, stride=1, grid=qint8):
    """The rule of numerics.md section 5 in NumPy, one candidate after the other."""
    magnitude = np.abs(data.astype(np.float32))
    top = magnitude.max()
    counts = np.zeros(BINS)
    for value in magnitude:
        counts[min(int(value / np.float32(top / BINS)), BINS - 1)] += 1
    centres = (np.arange(BINS) + 0.5) * top / BINS
    best, least = None, np.inf
    for i in range(100, 0, -stride):
        candidate = np.float32(top * np.float32(i) / 100)
        scale = candidate / grid.divisor
        error = np.minimum(np.floor(centres / scale + 0.5), grid.qmax) * scale - centres
        loss = (counts * error**2).sum()
        if loss < least:
            best, least = candidate, loss
    return best


def heavy_tail(seed, size=4000):
    rng = np.random.default_rng(seed)
    return np.concatenate([rng.normal(0, 0.2, size), [3.0 + seed]]).astype(np.float32)


@pytest.mark.parametrize("stride", [1, 7])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_search_finds_the_candidate_of_the_plain_rule(seed, stride):
    data = heavy_tail(seed)
    observer = MSEObserver(stride=stride)
    observer(torch.from_numpy(data))
    assert observer.absmax[1].item() == search(data, stride)
    if stride == 1:
        assert observer.absmax[1].item() < np.abs(data).max(), "the outlier is cut"


def test_each_grid_is_searched_on_its_own():
    data = heavy_tail(0)
    observer = MSEObserver()
    observer(torch.from_numpy(data))
    assert observer.absmax[2].item() == search(data, grid=qint16)
    assert observer.absmax[2].item() == np.abs(data).max()


def test_batches_move_the_result_by_the_constant():
    batches = [heavy_tail(seed) for seed in range(3)]
    observer = MSEObserver(averaging_constant=0.25)
    expected = None
    for batch in batches:
        observer(torch.from_numpy(batch))
        new = torch.tensor(search(batch))
        expected = new if expected is None else expected + 0.25 * (new - expected)
    assert observer.absmax[1].item() == expected.item()


def test_ties_take_the_larger_range():
    observer = MSEObserver()
    observer(torch.zeros(10))
    assert observer.absmax.tolist() == [[0.0]] * 3
    observer = MSEObserver()
    observer(torch.tensor([0.0, 1.0]))
    assert observer.absmax[1].item() == search(np.array([0.0, 1.0], dtype=np.float32))


def test_channels_are_searched_independently():
    rows = np.stack([heavy_tail(seed) for seed in range(3)])
    observer = MSEObserver(ch_axis=0)
    observer(torch.from_numpy(rows))
    assert observer.absmax[1].tolist() == [float(search(row)) for row in rows]


def test_histogram_counts_all_elements_and_no_infinity():
    data = torch.tensor([[0.0, 1.0, -2.0], [float("inf"), 0.5, 4.0]])
    counts = histogram(data, torch.tensor([2.0, 4.0]), 0)
    assert counts.sum(1).tolist() == [3, 2]
    assert counts[0].nonzero().flatten().tolist() == [0, BINS // 2, BINS - 1]
    assert counts[1].nonzero().flatten().tolist() == [BINS // 8, BINS - 1]


def test_rebin_moves_counts_to_where_their_centres_fall():
    top = torch.tensor([1.0])
    counts = histogram(torch.linspace(-1, 1, 5000), top, -1)
    wider = rebin(HistogramSummary(-top, top, counts, top), torch.tensor([2.0]))
    assert wider.sum() == counts.sum()
    assert wider[0, BINS // 2 :].sum() == 0
    assert torch.equal(wider[0, : BINS // 2], counts[0].reshape(-1, 2).sum(1))


def test_two_calls_of_one_forward_search_their_union():
    first, second = heavy_tail(0), heavy_tail(0)[::-1].copy()
    together, union = MSEObserver(), MSEObserver()
    with forward_scope():
        together(torch.from_numpy(first))
        together(torch.from_numpy(second))
    union(torch.from_numpy(np.concatenate([first, second])))
    assert torch.equal(together.absmax, union.absmax)


@pytest.mark.parametrize("stride", [0, 101, 1.5])
def test_stride_out_of_range_is_refused(stride):
    with pytest.raises(ArgumentError, match="stride"):
        MSEObserver(stride=stride)
