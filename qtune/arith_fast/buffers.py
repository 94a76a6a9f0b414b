"""Memory of large results, used again as soon as the last tensor on it is gone.

A fresh result of some megabytes costs the system one page fault per 4 KiB, often more time than
the kernel that fills it. Here results are pieces of one block, as large as all results alive at
the same time once were.
"""

from __future__ import annotations

import functools
import math
import os
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

SMALL = 1 << 18
"""Results of fewer bytes come from the allocator: it keeps such pieces anyway."""

KEPT = 1 << 28
"""A block of more bytes is not kept when nothing lies on it any more."""

_ALIGNMENT = 64

Piece = tuple[int, int]
"""Start and end of a piece, in bytes."""


def empty(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Return an unfilled contiguous tensor."""
    size = math.prod(shape) * dtype.itemsize
    if size < SMALL:
        return torch.empty(tuple(shape), dtype=dtype)
    return _pool(os.getpid()).take(size).view(dtype).view(tuple(shape))


def empty_map(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Return an unfilled tensor, in channels_last if it has 4 dimensions."""
    if len(shape) != 4:
        return empty(shape, dtype)
    images, channels, height, width = shape
    return empty((images, height, width, channels), dtype).permute(0, 3, 1, 2)


def empty_like(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return an unfilled tensor of the shape of ``x``, and of its memory order if that is dense."""
    if x.is_contiguous():
        return empty(x.shape, dtype)
    if x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last):
        return empty_map(x.shape, dtype)
    return torch.empty_like(x, dtype=dtype)


@functools.cache
def _pool(process: int) -> _Pool:
    """The pool of this process (its parent's lock may have been held while it was forked)."""
    return _Pool()


class _Block:
    """Memory and its free pieces, in order and never side by side."""

    def __init__(self, size: int) -> None:
        raw = np.empty(size + _ALIGNMENT, dtype=np.uint8)
        first = -raw.ctypes.data % _ALIGNMENT
        self.memory = raw[first : first + size]
        self.free: list[Piece] = [(0, size)]
        self.returned: deque[Piece] = deque()
        self._watched: dict[int, weakref.ref[Any]] = {}

    @property
    def is_idle(self) -> bool:
        """Whether nothing lies on it."""
        return self.free == [(0, len(self.memory))]

    @property
    def used(self) -> int:
        """Bytes of the pieces in use."""
        return len(self.memory) - sum(stop - start for start, stop in self.free)

    def collect(self) -> None:
        """Take back what tensors have given up."""
        if not self.returned:
            return
        while self.returned:
            self.free.append(self.returned.popleft())
        self.free.sort()
        merged = self.free[:1]
        for start, stop in self.free[1:]:
            if merged[-1][1] == start:
                merged[-1] = (merged[-1][0], stop)
            else:
                merged.append((start, stop))
        self.free = merged

    def take(self, size: int) -> torch.Tensor | None:
        """A piece from the tightest gap, or ``None``."""
        room = -(-size // _ALIGNMENT) * _ALIGNMENT
        gaps = [(stop - start, start) for start, stop in self.free if stop - start >= room]
        if not gaps:
            return None
        extent, start = min(gaps)
        self.free.remove((start, start + extent))
        if extent > room:
            self.free.append((start + room, start + extent))
        piece = self.memory[start : start + size]
        # The tensor keeps this very array alive; when it goes, the piece is free. A deque's append
        # needs no lock, and garbage may be collected while one is held.

        def gone(reference: weakref.ref[Any]) -> None:
            del self._watched[start]
            self.returned.append((start, start + room))

        self._watched[start] = weakref.ref(piece, gone)
        return torch.from_numpy(piece)


class _Pool:
    """Blocks; usually one. What does not fit gets a block, until all can become one again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._blocks: list[_Block] = []
        self._peak = 0

    def take(self, size: int) -> torch.Tensor:
        """Return ``size`` bytes."""
        with self._lock:
            for block in self._blocks:
                block.collect()
            if all(block.is_idle for block in self._blocks):
                self._join()
            piece = self._piece(size)
            self._peak = max(self._peak, sum(block.used for block in self._blocks))
        return piece

    def _piece(self, size: int) -> torch.Tensor:
        for block in self._blocks:
            found = block.take(size)
            if found is not None:
                return found
        block = _Block(-(-size // _ALIGNMENT) * _ALIGNMENT)
        self._blocks.append(block)
        found = block.take(size)
        if found is None:
            raise MemoryError(f"no room for {size} bytes")
        return found

    def _join(self) -> None:
        """Between runs: one block in place of several, none in place of a huge one.

        It is little larger than what was in use at the same time; where that proves too tight
        (gaps), as large as all blocks together.
        """
        total = sum(len(block.memory) for block in self._blocks)
        if total > KEPT:
            self._blocks, self._peak = [], 0
        elif len(self._blocks) > 1:
            tight = self._peak * 17 // 16
            enough = len(self._blocks[0].memory) < tight
            self._blocks = [_Block(tight if enough else total)]
