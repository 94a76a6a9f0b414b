"""One pass over two tensors gives what each metric gives alone."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from qtune.profiler.metric import Metric
from qtune.profiler.pair_sums import MEANS, TOP, channel_energies, distance, sums_for, sums_of
from qtune.profiler.sum_formulas import FORMULAS

METRICS = [Metric.get_metric(name) for name in FORMULAS]
ALL = sums_for(METRICS) | MEANS | TOP


def pair(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(1)
    a = torch.randn(shape, generator=draw).add(0.5)
    return a.to(dtype), (a + 0.01 * torch.randn(shape, generator=draw)).to(dtype)


@pytest.mark.parametrize("native", ["on", "off"])
@pytest.mark.parametrize("shape", [(7,), (9, 1000), (2, 3, 50, 50), (2, 70000)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_metrics_of_sums_are_those_of_the_metric(
    shape: tuple[int, ...], dtype: torch.dtype, native: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QTUNE_NATIVE", native)
    a, b = pair(shape, dtype)
    sums = sums_of(a, b, ALL)
    assert sums is not None
    for metric in METRICS:
        # float64 sums in another order
        assert distance(metric, a, b, sums) == pytest.approx(metric(a, b), rel=1e-12), metric
    assert sums.largest == Metric.ATOL(a, b)
    means = a.mean(dtype=torch.float64), b.mean(dtype=torch.float64)
    assert sums.means == pytest.approx(tuple(map(float, means)), rel=1e-12)
    if sums.ranges is not None:
        assert sums.ranges == tuple((float(v.min()), float(v.max())) for v in (a, b))


def test_only_the_sums_that_are_asked_for_are_taken() -> None:
    a, b = pair((100,))
    found = sums_of(a, b, sums_for([Metric.COSINE]))
    assert found is not None
    assert set(found.sums) == {"aa", "bb", "ab"}
    assert sums_of(a, b, sums_for([Metric.KL])) is None


@pytest.mark.parametrize("size", [100, 5000])
@pytest.mark.parametrize("wanted", [ALL, TOP, sums_for([Metric.COSINE])])
def test_equal_tensors_are_perfect(size: int, wanted: frozenset[str]) -> None:
    a, _ = pair((size,))
    sums = sums_of(a, a.clone(), wanted)
    assert sums is not None
    for metric in METRICS:
        if set(FORMULAS[metric.name].needs) <= wanted:
            assert distance(metric, a, a.clone(), sums) == metric(a, a.clone())


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("size", [100, 5000])
def test_what_is_not_finite_has_no_sums(bad: float, size: int) -> None:
    a, b = pair((size,))
    b[3] = bad
    assert sums_of(a, b, ALL) is None
    # equal but for NaN, which equals nothing
    assert distance(Metric.ATOL, a, b, None) == pytest.approx(abs(bad), nan_ok=True)


def test_values_whose_squares_leave_float64_are_looked_at_again() -> None:
    a = torch.tensor([1e-200, 2e-200], dtype=torch.float64)
    b = torch.tensor([1e-200, 2.5e-200], dtype=torch.float64)
    sums = sums_of(a, b, ALL)
    # float64: the root and the logarithm round
    assert distance(Metric.COSINE, a, b, sums) == pytest.approx(6 / math.sqrt(5 * 7.25), rel=1e-12)
    assert distance(Metric.SQNR, a, b, sums) == pytest.approx(10 * math.log10(20), rel=1e-12)


@pytest.mark.parametrize("native", ["on", "off"])
@pytest.mark.parametrize("shape", [(5, 8), (3, 8, 17), (4, 8, 40, 40), (2, 8, 3, 1)])
def test_channel_energies_are_sums_of_squares(
    shape: tuple[int, ...], native: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QTUNE_NATIVE", native)
    a, b = pair(shape)
    p, e = a.double(), a.double() - b.double()
    others = [axis for axis in range(a.dim()) if axis != 1]
    found = channel_energies(a, b, sums_of(a, b, ALL))
    # float64 on both sides, in another order, and through a square root
    torch.testing.assert_close(
        found, torch.stack([p.square().sum(others), e.square().sum(others)]), rtol=1e-12, atol=0
    )


def test_the_layout_in_memory_plays_no_role() -> None:
    a, b = pair((2, 16, 20, 20))
    last = a.contiguous(memory_format=torch.channels_last)
    left, right = sums_of(a, b, ALL), sums_of(last, b, ALL)
    assert left is not None
    assert right is not None
    # float64 sums in another order
    assert left.sums == pytest.approx(dict(right.sums), rel=1e-12)
