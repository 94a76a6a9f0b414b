"""How many torch threads a process with tests gets: the cores shared out among the workers."""

from __future__ import annotations

import os

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
        workers = 1 if runs_tests(config) else len(config.getoption("tx", None) or [1])
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, (cores or 1) // workers)


def limit_torch(config: pytest.Config) -> int:
    """Let torch use the threads of this process; ``auto`` never raises what torch has."""
    import torch

    count = per_process(config)
    if get(config, "threads") == "auto":
        count = min(count, torch.get_num_threads())
    torch.set_num_threads(count)
    return count
