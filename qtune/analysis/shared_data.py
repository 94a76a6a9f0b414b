"""The data of several processes: who searches what, and how many cases there are in all."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sized
from typing import Any

from torch.utils.data import DataLoader, DistributedSampler, RandomSampler, SequentialSampler

from qtune.analysis.ranks import Ranks

_log = logging.getLogger("qtune.analysis")


def count_of(data: Iterable[Any], ranks: Ranks) -> int | None:
    """How many cases the data of all processes have, ``None`` where it isn't known.

    A ``DistributedSampler`` gives the last processes items of the beginning once more, so that all
    have as many. A batch of nothing else is no case of its own. A loader that gives every process
    the same data is named in the log.
    """
    if not ranks.are_several or not isinstance(data, DataLoader):
        return None
    sampler = getattr(data.batch_sampler, "sampler", data.sampler)
    if not isinstance(sampler, DistributedSampler):
        if isinstance(sampler, (SequentialSampler, RandomSampler)):
            _warn(ranks, "it has no DistributedSampler")
        return None
    if (sampler.num_replicas, sampler.rank) != (ranks.count, ranks.rank):
        of = f"process {sampler.rank} of {sampler.num_replicas}"
        _warn(ranks, f"its DistributedSampler is that of {of} in process {ranks.rank}")
        return None
    batch = getattr(data.batch_sampler, "batch_size", data.batch_size)
    if not isinstance(batch, int) or not isinstance(sampler.dataset, Sized):
        return None
    return _cases(len(sampler.dataset), sampler.num_samples, batch, ranks.count)


def _cases(items: int, share: int, batch: int, processes: int) -> int:
    """Batches that hold an item of their own. ``share``: items of one process, some twice."""
    full, rest = divmod(share - 1, batch)
    if rest:  # before the item that may be there twice, the last batch has others
        return (full + 1) * processes
    own = items - (share - 1) * processes
    return full * processes + min(own, processes)


def _warn(ranks: Ranks, why: str) -> None:
    _log.warning(
        "auto_find_bad_case: the loader does not share the data out among the %d processes (%s); "
        "give it a DistributedSampler(dataset, shuffle=False)",
        ranks.count,
        why,
    )
