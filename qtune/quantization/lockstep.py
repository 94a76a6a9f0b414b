"""Steps that several processes take together, so that none waits for another for ever."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Iterator
from typing import TypeVar

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from qtune.errors import PrepareError
from qtune.quantizers.fake_quantize import FakeQuantize
from qtune.quantizers.processes import from_all_processes, in_several_processes

_READY, _DONE, _FAILED = 0, 1, 2
_Item = TypeVar("_Item")
_log = logging.getLogger(__name__)


def exchanges_data(model: nn.Module) -> bool:
    """Whether a forward of ``model`` waits for the same forward of other processes."""
    return in_several_processes() and any(
        isinstance(module, DistributedDataParallel)
        or (isinstance(module, FakeQuantize) and module.activation_post_process.is_sync_quantize)
        for module in model.modules()
    )


def in_lockstep(items: Iterable[_Item], where: str) -> Iterator[_Item]:
    """The ``items`` of this process, until one of the processes has no more.

    Before each step all processes tell each other whether they have an item. Where one ends before
    the others, all stop there, and the log says so. Raises ``PrepareError`` in the others where
    one failed to get its item, or never had any.
    """
    iterator, steps = iter(items), 0
    while True:
        try:
            found = list(itertools.islice(iterator, 1))
        except BaseException:
            from_all_processes(_FAILED)
            raise
        states = from_all_processes(_READY if found else _DONE)
        if set(states) != {_READY}:
            _check(states, steps, where)
            return
        yield from found
        steps += 1


def _check(states: list[int], steps: int, where: str) -> None:
    """What to say where a process has no item for the next step."""
    failed = [rank for rank, state in enumerate(states) if state == _FAILED]
    done = [rank for rank, state in enumerate(states) if state == _DONE]
    if failed:
        raise PrepareError(
            f"{where}: batch {steps} failed in process {_listed(failed)}, see the error there; "
            "all processes stop, the model is as it was"
        )
    if len(done) == len(states):
        return
    if not steps:
        raise PrepareError(
            f"{where}: the data loader gave no batch in process {_listed(done)}; give every "
            "process some data, or calibrate in one process"
        )
    _log.warning(
        "%s: process %s has no more than %d batches, so all stop there; later batches of the "
        "others are not used",
        where,
        _listed(done),
        steps,
    )


def _listed(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks))
