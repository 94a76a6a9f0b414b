"""How many torch threads a process with tests gets: the cores shared out among the workers."""

from __future__ import annotations

import os
from collections.abc import Sequence

import pytest

from pytest_qtune.options import get


def runs_tests(config: pytest.Config) -> bool:
    """Whether tests run in this process: a worker, or a run without workers."""
    return hasattr(config, "workerinput") or config.getoption("dist", "no") == "no"


def per_process(config: pytest.Config) -> int:
    """Torch threads for a process with tests: the option, or the cores divided by the workers."""
    value = get(config, "threads")
    if value != "auto":
        return int(value)
    worker = getattr(config, "workerinput", None)
    if worker is not None:
        workers = int(worker.get("workercount", 1))
    else:
        workers = 1 if runs_tests(config) else _count(config.getoption("tx", None) or ["popen"])
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, (cores or 1) // workers)


def _count(specs: Sequence[str]) -> int:
    """How many workers xdist's ``--tx`` asks for: ``2*popen`` are two."""
    heads = [spec.partition("*")[0] for spec in specs]
    return sum(int(head) if head.isdecimal() else 1 for head in heads)


def limit_torch(config: pytest.Config) -> int:
    """Let torch use the threads of this process; ``auto`` never raises what torch has."""
    import torch

    count = per_process(config)
    if get(config, "threads") == "auto":
        count = min(count, torch.get_num_threads())
    torch.set_num_threads(count)
    return count
