"""Small analyses by several processes, many of them in one launch."""

from __future__ import annotations

import datetime
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from qtune.analysis import ranks
from qtune.march import march
from qtune.nn.prepared import PreparedModel
from qtune.profiler import QuantAnalysis
from tests.analysis.nets import calibrated
from tests.ranks import on_ranks

BATCHES = [torch.rand(1, 3, 6, 6, generator=torch.Generator().manual_seed(i)) for i in range(6)]


class Small(nn.Module):
    """Two convolutions and a head: a float and an integer output."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        score = self.head(self.conv2(self.conv1(x).relu()).relu().mean((2, 3)))
        return {"score": score, "best": score.argmax(1)}


@dataclass(frozen=True, slots=True)
class Place:
    """Where a scenario runs: in which process, of how many, with which models, writing where."""

    rank: int
    count: int
    folder: Path
    net: nn.Module
    model: PreparedModel

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def mine(self, items: Sequence[Any]) -> Sequence[Any]:
        return items[self.rank :: self.count]

    def session(self, **options: Any) -> QuantAnalysis:
        given = {"out_dir": str(self.folder), **options}
        return QuantAnalysis(self.net, self.model, "fake_quant", **given)


Scenario = Callable[[Place], Any]
Scenarios = Mapping[str, Scenario]


@contextmanager
def as_in_tests() -> Iterator[None]:
    """A march, no run files, and no patience for a process that never comes."""
    with pytest.MonkeyPatch.context() as patch, march("nash-e"):
        patch.setenv("QTUNE_RUN_DIR", "")
        for name in ("MEETING", "PATIENCE"):
            patch.setattr(ranks, name, datetime.timedelta(seconds=60))
        yield


def small() -> tuple[nn.Module, PreparedModel]:
    """The net and its calibrated model."""
    torch.manual_seed(0)
    net = Small().eval()
    return net, calibrated(net, *BATCHES)


def in_processes(count: int, scenarios: Scenarios, folder: Path) -> dict[str, list[Any]]:
    """What each scenario gave, by rank."""
    with as_in_tests():
        found = on_ranks(_all_of, folder / "ranks", count, scenarios, folder, *small(), count=count)
    for each in found:
        assert isinstance(each, dict), each
    return {name: [each[name] for each in found] for name in scenarios}


def alone(scenarios: Scenarios, folder: Path) -> dict[str, Any]:
    """The same in one process."""
    with as_in_tests():
        return _all_of(0, 1, scenarios, folder, *small())


def _all_of(
    rank: int, count: int, scenarios: Scenarios, folder: Path, net: nn.Module, model: PreparedModel
) -> dict[str, Any]:
    found = {}
    for name, scenario in scenarios.items():
        try:
            found[name] = scenario(Place(rank, count, folder / name, net, model))
        except Exception:
            found[name] = traceback.format_exc()
    return found
