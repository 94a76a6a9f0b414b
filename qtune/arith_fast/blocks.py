"""Walk large tensors in pieces that stay in a core's cache.

A rule such as ``clamp(floor(x / s + 0.5)) * s`` is a chain of element-wise passes. Run over a whole
activation, each pass reads and writes main memory; run over one block at a time, all but the first
read and the last write stay in the cache.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

BLOCK = 65536
"""Elements per thread and block: half a megabyte of float64."""


def block_elements() -> int:
    """Return the elements of one block for the current number of threads."""
    return BLOCK * torch.get_num_threads()


def spans(length: int, step: int) -> Iterator[tuple[int, int]]:
    """Yield ``(start, stop)`` pieces of at most ``step`` (at least 1) that cover ``length``."""
    step = max(step, 1)
    for start in range(0, length, step):
        yield start, min(start + step, length)


def storage_order(x: torch.Tensor) -> torch.Tensor | None:
    """Return ``x`` as a 1-d view in the order of its memory, or ``None`` if it has gaps.

    Two tensors of one shape and one memory format give views whose elements correspond.
    """
    if x.is_contiguous():
        return x.view(-1)
    if x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last):
        return x.permute(0, 2, 3, 1).reshape(-1)
    return None


def channel_rows(x: torch.Tensor, axis: int) -> torch.Tensor | None:
    """Return ``x`` as a ``[rows, channels]`` view in memory order, or ``None`` if it is not one."""
    if axis % x.dim() == x.dim() - 1 and x.is_contiguous():
        return x.view(-1, x.shape[-1])
    last = x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last)
    if last and axis % x.dim() == 1:
        return x.permute(0, 2, 3, 1).reshape(-1, x.shape[1])
    return None
