"""Sums of two tensors by the compiled kernel are those of float64 in torch."""

from __future__ import annotations

import pytest
import torch

from qtune.arith_fast.native import engine
from qtune.arith_fast.native.pair_summing import ENDS, FIELDS, SUMS, native_pair_sums

pytestmark = pytest.mark.skipif(not engine.available(), reason="no compiled kernels here")


def expected(x: torch.Tensor, y: torch.Tensor) -> dict[str, float]:
    a, b = x.double(), y.double()
    e = a - b
    sums = {"a": a, "b": b, "aa": a * a, "bb": b * b, "ab": a * b, "ee": e * e, "abs_e": e.abs()}
    ends = {"top_e": e.abs().max(), "low_a": a.min(), "high_a": a.max(), "low_b": b.min()}
    ends["high_b"] = b.max()
    return {n: float(v) for n, v in ({n: v.sum() for n, v in sums.items()} | ends).items()}


@pytest.mark.parametrize(
    ("values", "count"), [(4096, 4096), (5003, 100), (70001, 65536), (9000, 7)]
)
def test_every_row_has_the_sums_of_float64(values: int, count: int) -> None:
    draw = torch.Generator().manual_seed(values)
    a = 1 + torch.randn(values, generator=draw)
    b = a + 0.01 * torch.randn(values, generator=draw)
    rows = native_pair_sums(a, b, count)
    assert rows is not None
    assert rows.shape == (-(-values // count), len(FIELDS))
    for row, x, y in zip(rows.tolist(), a.split(count), b.split(count), strict=True):
        found, known = dict(zip(FIELDS, row, strict=True)), expected(x, y)
        assert {n: found[n] for n in ENDS} == {n: known[n] for n in ENDS}
        for name in SUMS:  # float64 sums in another order
            assert found[name] == pytest.approx(known[name], rel=1e-12, abs=1e-11), name


def test_extremes_of_rows_of_one_sign_do_not_see_the_lanes_beyond_the_end() -> None:
    a = torch.full((4099,), -3.0)
    rows = native_pair_sums(a, a - 1, 4099)
    assert rows is not None
    found = dict(zip(FIELDS, rows[0].tolist(), strict=True))
    assert [found[n] for n in ENDS] == [1.0, -3.0, -3.0, -4.0, -4.0]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_shows_in_the_sums(bad: float) -> None:
    a = torch.ones(5000)
    a[4321] = bad
    rows = native_pair_sums(a, torch.ones(5000), 1000)
    assert rows is not None
    assert torch.isfinite(rows).all(1).tolist() == [True, True, True, True, False]


@pytest.mark.parametrize(
    "pair",
    [
        (torch.ones(5000, dtype=torch.float64), torch.ones(5000)),
        (torch.ones(50, 100).T, torch.ones(100, 50)),
        (torch.ones(10), torch.ones(10)),
    ],
)
def test_what_it_can_not_take_is_left_to_torch(pair: tuple[torch.Tensor, torch.Tensor]) -> None:
    assert native_pair_sums(*pair, 100) is None


def test_threads_change_no_bit() -> None:
    a = torch.randn(200_000, generator=torch.Generator().manual_seed(0))
    found = []
    before = torch.get_num_threads()
    for threads in (1, 2):
        torch.set_num_threads(threads)
        try:
            rows = native_pair_sums(a, a * 1.01, 1000)
        finally:
            torch.set_num_threads(before)
        assert rows is not None
        found.append(rows)
    assert torch.equal(*found)
