"""Functions run on several processes of ``torch.distributed`` (gloo)."""

from __future__ import annotations

import datetime
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import multiprocessing

from qtune import march

RANKS = 2
_PATIENCE = datetime.timedelta(seconds=60)
"""After this long, processes that wait for each other for ever end with an error."""


def on_ranks(
    function: Callable[..., Any],
    folder: Path,
    *arguments: Any,
    start_method: str = "fork",
    count: int = RANKS,
) -> list[Any]:
    """What ``function(rank, *arguments)`` returned in each of ``count`` processes, by rank.

    An exception is returned as its text, so that a test can say what it expects in each process.
    """
    folder.mkdir(parents=True, exist_ok=True)
    given = (function, folder, march._current, arguments, count)
    multiprocessing.start_processes(_worker, given, count, start_method=start_method)
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(count)]


def _worker(
    rank: int,
    function: Callable[..., Any],
    folder: Path,
    current_march: Any,
    arguments: Any,
    count: int,
) -> None:
    torch.set_num_threads(1)
    march._current = current_march
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=count,
        timeout=_PATIENCE,
    )
    try:
        found = function(rank, *arguments)
    except Exception:
        found = traceback.format_exc()
    torch.save(found, folder / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()
