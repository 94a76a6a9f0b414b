"""Several processes of ``torch.distributed``: what is exchanged, and on which device."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DataParallel, DistributedDataParallel

_DEVICES = {"nccl": "cuda", "xccl": "xpu"}
"""Backends that exchange tensors of one kind of device only."""


def in_group() -> bool:
    """Whether this process belongs to a group of ``torch.distributed``, be it alone."""
    return dist.is_available() and dist.is_initialized()


def in_several_processes() -> bool:
    """Whether ``torch.distributed`` runs with more than one process."""
    return in_group() and dist.get_world_size() > 1


def own_rank() -> int:
    """The number of this process among those of ``torch.distributed``, 0 without others."""
    return dist.get_rank() if in_group() else 0


def unwrapped(model: Any) -> Any:
    """The model inside of ``DataParallel`` or ``DistributedDataParallel``; others as they are."""
    return model.module if isinstance(model, DataParallel | DistributedDataParallel) else model


def in_parallel_forward() -> bool:
    """Whether this is the forward of a ``DistributedDataParallel``, which all processes run."""
    return getattr(DistributedDataParallel, "_active_ddp_module", None) is not None


def reduce_over_processes(value: torch.Tensor, largest: bool = False) -> torch.Tensor:
    """Make ``value`` the sum (or ``largest``) over all processes, in place; return it.

    Every process must call this, with the same shape and dtype. A backend that can't exchange
    tensors of this device gets a copy on its own device (NCCL: the current GPU).
    """
    device = _DEVICES.get(dist.get_backend(), value.device.type)
    sent = value if value.device.type == device else value.to(device)
    dist.all_reduce(sent, op=dist.ReduceOp.MAX if largest else dist.ReduceOp.SUM)
    return value if sent is value else value.copy_(sent)


def from_all_processes(number: int) -> list[int]:
    """The ``number`` of every process, by rank."""
    numbers = torch.zeros(dist.get_world_size(), dtype=torch.int64)
    numbers[dist.get_rank()] = number
    return [int(each) for each in reduce_over_processes(numbers)]
