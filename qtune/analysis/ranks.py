"""Several processes of ``torch.distributed`` that work on one analysis (tuning tool document).

Each searches its share of the data and ranks its share of the stubs; what one of them found all of
them get, so that every process returns the same values. Files are written by the first process,
into a folder that all processes see.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence, Sized
from dataclasses import dataclass
from typing import Any, TypeVar

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from qtune.errors import AnalysisError
from qtune.quantizers.processes import in_several_processes

T = TypeVar("T")
_log = logging.getLogger("qtune.analysis")


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process among the ``count`` ones that share the work of an analysis."""

    rank: int = 0
    count: int = 1

    @classmethod
    def here(cls) -> Ranks:
        """The processes of the default group of ``torch.distributed``, this one alone without."""
        return cls(dist.get_rank(), dist.get_world_size()) if in_several_processes() else cls()

    @property
    def are_several(self) -> bool:
        """Whether there is anyone to share with."""
        return self.count > 1

    @property
    def is_first(self) -> bool:
        """Whether this process writes the files."""
        return self.rank == 0

    def index(self, step: int) -> int:
        """Number of this process's ``step``-th item in the data of all processes.

        That is its place in the data set with a ``DistributedSampler(shuffle=False)`` and batches
        of one.
        """
        return step * self.count + self.rank

    def share(self, items: Sequence[T]) -> Sequence[T]:
        """The part of ``items`` that is this process's work; neighbours go to different ones."""
        return items[self.rank :: self.count]

    def everywhere(self, where: str, work: Callable[[], T]) -> list[T]:
        """What ``work()`` gave in each process, by rank.

        An exception in one process ends the step in all: the others raise ``AnalysisError`` that
        names the process and its error, so that none waits for ever.
        """
        if not self.are_several:
            return [work()]
        found: list[Any] = [None] * self.count
        try:
            value = work()
        except BaseException as error:
            dist.all_gather_object(found, (None, f"{type(error).__name__}: {error}"))
            raise
        dist.all_gather_object(found, (value, None))
        failed = {rank: text for rank, (_, text) in enumerate(found) if text is not None}
        if failed:
            rank, text = next(iter(failed.items()))
            raise AnalysisError(f"{where}: process {rank} failed, so all stop. There: {text}")
        return [value for value, _ in found]

    def on_first(self, where: str, work: Callable[[], T]) -> T:
        """What ``work()`` gave in the first process, which alone does it; all processes get it."""
        if not self.are_several:
            return work()
        given: list[Any] = self.everywhere(where, work if self.is_first else _nothing)
        first: T = given[0]
        return first

    def count_of(self, data: Iterable[Any]) -> int | None:
        """Length of the whole data, where a sampler that shares it out knows it.

        It gives the last processes items again so that all have as many: these are no cases of
        their own. A loader that gives every process the same data is named in the log.
        """
        if not self.are_several or not isinstance(data, DataLoader):
            return None
        if not isinstance(data.sampler, DistributedSampler):
            _log.warning(
                "each of the %d processes searches all the data; give the loader a "
                "DistributedSampler(dataset, shuffle=False) so that they share it",
                self.count,
            )
            return None
        dataset = data.sampler.dataset
        return len(dataset) if data.batch_size == 1 and isinstance(dataset, Sized) else None


def _nothing() -> Any:
    return None


def without_ddp(model: Any) -> Any:
    """The model that a ``DistributedDataParallel`` holds; other models as they are."""
    return model.module if isinstance(model, DistributedDataParallel) else model


ALONE = Ranks()
"""One process, which does everything."""
