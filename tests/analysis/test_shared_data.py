"""What each of several processes works on, and which of its batches are cases."""

from __future__ import annotations

from typing import Any

import pytest
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler

from qtune.analysis.ranks import Ranks
from qtune.analysis.shared_data import count_of


def test_work_is_dealt_out_to_and_fro() -> None:
    assert [Ranks(rank, 2).share("abcdefg") for rank in range(2)] == [list("ade"), list("bcfg")]
    assert [Ranks(rank, 3).share("abcdefg") for rank in range(3)] == [
        ["a", "f", "g"],
        ["b", "e"],
        ["c", "d"],
    ]
    assert Ranks().share("abc") == list("abc")


@pytest.mark.parametrize("processes", [2, 3])
@pytest.mark.parametrize("batch", [1, 2, 3])
@pytest.mark.parametrize("drop_last", [False, True])
def test_batches_of_items_that_a_sampler_repeats_are_no_cases(
    processes: int, batch: int, drop_last: bool
) -> None:
    for size in range(processes, 15):
        items: Any = list(range(size))
        seen: list[tuple[int, list[int]]] = []
        counts = set()
        for rank in range(processes):
            sampler = DistributedSampler(items, processes, rank, shuffle=False, drop_last=drop_last)
            loader = DataLoader(items, batch, sampler=sampler)
            ranks = Ranks(rank, processes)
            counts.add(count_of(loader, ranks))
            seen += [(ranks.index(step), each.tolist()) for step, each in enumerate(loader)]
        (count,) = counts
        cases = dict(seen)
        kept = [cases.get(index, []) for index in range(count or 0)]
        own = {item for items in kept for item in items}
        assert own == {item for _, items in seen for item in items}
        dropped = [items for index, items in seen if index >= (count or 0)]
        assert all(set(items) <= own and items[0] < processes for items in dropped)
        assert len(dropped) == (
            0 if drop_last or -(-size // processes) % batch != 1 % batch else -size % processes
        )


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({}, "it has no DistributedSampler"),
        ({"shuffle": True}, "it has no DistributedSampler"),
        ({"sampler": RandomSampler(range(5))}, "it has no DistributedSampler"),
        (
            {"sampler": DistributedSampler(range(5), 1, 0)},  # type: ignore[arg-type]
            "its DistributedSampler is that of process 0 of 1 in process 1",
        ),
    ],
)
def test_a_loader_that_does_not_share_the_data_out_is_named(
    caplog: pytest.LogCaptureFixture, options: dict[str, Any], why: str
) -> None:
    ranks = Ranks(1, 2)
    caplog.set_level("WARNING", "qtune.analysis")
    assert count_of(DataLoader(range(5), **options), ranks) is None  # type: ignore[arg-type]
    assert "does not share the data out among the 2 processes" in caplog.text
    assert why in caplog.text
    assert [ranks.index(step) for step in range(3)] == [1, 3, 5]
