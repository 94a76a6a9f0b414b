"""The torch histograms and searches against the NumPy ones, value by value."""

import numpy as np
import pytest
import torch

from qtune.arith import histogram as plain
from qtune.arith import ranges as plain_ranges
from qtune.arith_fast import histogram as fast
from qtune.arith_fast import ranges as fast_ranges
from qtune.dtype import qint4, qint8, qint16

GRIDS = (qint4, qint8, qint16)
RNG = np.random.default_rng(0)


def channels(size):
    """One row per kind of data that a channel can hold, one of them widest by far."""
    rows = [
        RNG.normal(0, 1, size),
        RNG.laplace(0, 1, size) * 50,
        RNG.standard_t(2, size),
        np.maximum(RNG.normal(0, 1, size), 0),
        RNG.integers(-5, 6, size),
        np.full(size, 3.0),
        np.full(size, -1e-38),
        np.zeros(size),
        np.append(RNG.normal(0, 0.2, size - 1), 4.0),
        RNG.uniform(-1, 1, size),
    ]
    return np.stack(rows).astype(np.float32)


def both(data, bins):
    """The plain counts, widths and tops per row, and the fast ones of all rows."""
    tops = np.abs(data).max(axis=1)
    widths = [plain.bin_width(top, bins) for top in tops]
    counts = [plain.magnitude_counts(r, w, bins) for r, w in zip(data, widths, strict=True)]
    top = torch.from_numpy(tops)
    width = fast.bin_widths(top, bins)
    return (counts, widths, tops), (
        fast.magnitude_counts(torch.from_numpy(data), width, bins, 0),
        width,
        top,
    )


@pytest.mark.parametrize("bins", [1, 512, 1000, 2048])
@pytest.mark.parametrize("size", [1, 300, 5000])
def test_counts_are_the_plain_ones(bins, size):
    (counts, widths, _), (fast_counts, width, _) = both(channels(size), bins)
    assert width.tolist() == [float(w) for w in widths]
    assert fast_counts.tolist() == [c.tolist() for c in counts]
    assert fast_counts.is_contiguous(), "what processes exchange must lie in one piece"


@pytest.mark.parametrize("axis", [0, 1, 2, 3])
@pytest.mark.parametrize("dtype", [torch.half, torch.bfloat16, torch.double])
def test_counts_follow_axis_strides_and_dtype(axis, dtype):
    data = torch.from_numpy(RNG.normal(0, 1, (3, 4, 5, 6))).to(dtype).transpose(1, 3)[:, ::2]
    data[0, 0, 0, 0] = torch.inf
    rows = data.movedim(axis, 0).reshape(data.shape[axis], -1)
    top = torch.where(rows.isfinite(), rows, 0).abs().amax(1).float()
    width = fast.bin_widths(top, 64)
    expected = [
        plain.magnitude_counts(row.double().numpy(), np.float32(w), 64).tolist()
        for row, w in zip(rows, width.tolist(), strict=True)
    ]
    assert fast.magnitude_counts(data, width, 64, axis).tolist() == expected


def test_doubles_beyond_float32_are_counted_and_infinities_are_not():
    data = torch.tensor([1e300, -torch.inf, 1.0], dtype=torch.double)
    width = fast.bin_widths(torch.tensor([torch.finfo(torch.float32).max]), 4)
    assert fast.magnitude_counts(data, width, 4, -1).tolist() == [[1, 0, 0, 1]]


def test_growth_is_the_plain_one():
    widths = np.array([0, 1e-30, 0.3, 0.3, 1, 1], dtype=np.float32)
    tops = np.array([3, 1e30, 0.3 * 64, 0.3 * 129, 0, 64], dtype=np.float32)
    k = fast.doublings(torch.from_numpy(widths), 64, torch.from_numpy(tops))
    assert k.tolist() == [plain.doublings(w, 64, t) for w, t in zip(widths, tops, strict=True)]
    counts = RNG.integers(0, 100, (6, 64))
    assert fast.merged(torch.from_numpy(counts), k).tolist() == [
        plain.merged(row, int(n)).tolist() for row, n in zip(counts, k, strict=True)
    ]


def test_stretching_is_the_plain_one():
    counts = RNG.integers(0, 100, (4, 100))
    top = np.array([1.0, 0.7, 0.0, 2.0], dtype=np.float32)
    wider = np.array([1.0, 1.3, 5.0, 2.5], dtype=np.float32)
    moved = fast.stretched(*(torch.from_numpy(a) for a in (counts, top, wider)))
    expected = [plain.stretched(*row).tolist() for row in zip(counts, top, wider, strict=True)]
    assert moved.tolist() == expected


@pytest.mark.parametrize("percentile", [50.0, 99.0, 99.9, 99.99, 100.0])
@pytest.mark.parametrize("bins", [1, 1000, 2048])
def test_percentiles_are_the_plain_ones(percentile, bins):
    rows, found = both(channels(3000), bins)
    expected = [
        float(plain_ranges.percentile_range(*row, percentile)) for row in zip(*rows, strict=True)
    ]
    assert fast_ranges.percentile_range(*found, percentile).tolist() == expected


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("kind", ["mse", "mix"])
@pytest.mark.parametrize("size", [1, 3000])
def test_least_squares_are_the_plain_ones(grid, kind, size):
    rows, (counts, width, top) = both(channels(size), 2048)
    if kind == "mse":
        tried = fast_ranges.mse_candidates(top, 3)
        plain_tried = [plain_ranges.mse_candidates(t, 3) for t in rows[2]]
    else:
        tried = fast_ranges.mix_candidates(counts, width, top)
        plain_tried = [plain_ranges.mix_candidates(*row) for row in zip(*rows, strict=True)]
    assert tried.T.tolist() == [t.tolist() for t in plain_tried]
    expected = [
        float(plain_ranges.least_squares_range(c, w, t, grid))
        for c, w, t in zip(rows[0], rows[1], plain_tried, strict=True)
    ]
    assert fast_ranges.least_squares_range(counts, width, tried, grid).tolist() == expected


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize(("size", "bins"), [(1, 129), (200, 129), (3000, 512)])
def test_kl_ranges_are_the_plain_ones(grid, size, bins):
    rows, found = both(channels(size), bins)
    expected = [float(plain_ranges.kl_range(*row, grid)) for row in zip(*rows, strict=True)]
    assert fast_ranges.kl_range(*found, grid).tolist() == expected


def test_searches_in_blocks_change_nothing(monkeypatch):
    _, (counts, width, top) = both(channels(3000), 512)
    tried = fast_ranges.mse_candidates(top, 1)
    whole = fast_ranges.least_squares_range(counts, width, tried, qint8)
    kl = fast_ranges.kl_range(counts, width, top, qint8)
    monkeypatch.setattr(fast_ranges, "_BLOCK", 3 * counts.numel())
    assert torch.equal(fast_ranges.least_squares_range(counts, width, tried, qint8), whole)
    assert torch.equal(fast_ranges.kl_range(counts, width, top, qint8), kl)
