import numpy as np
import pytest
import torch

from qtune.arith.histogram import bin_width, magnitude_counts
from qtune.arith.ranges import least_squares_range, mse_candidates
from qtune.dtype import qint8, qint16
from qtune.errors import ArgumentError
from qtune.quantizers.batch_histogram import BINS
from qtune.quantizers.mse import MSEObserver
from qtune.quantizers.scope import forward_scope


def search(data, stride=1, grid=qint8):
    """The rule of numerics.md section 5 in NumPy."""
    top = np.abs(data).max()
    width = bin_width(top, BINS)
    counts = magnitude_counts(data, width, BINS)
    return least_squares_range(counts, width, mse_candidates(top, stride), grid)


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
