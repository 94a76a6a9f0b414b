"""How much memory tensors take at a moment: CUDA's own counters, or the storages that are alive."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class MemoryCounter(Protocol):
    """Counts the bytes of tensors on one device while it is entered."""

    source: str

    def __enter__(self) -> Any:
        """Begin to count."""

    def __exit__(self, *error: Any) -> Any:
        """End."""

    def now(self) -> int:
        """Bytes in use."""

    def peak(self) -> int:
        """Most bytes in use since the last call."""


class CudaCounter:
    """The counters of torch's CUDA allocator (``torch.cuda.memory_allocated``)."""

    source = "torch.cuda.memory_allocated and max_memory_allocated"

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def __enter__(self) -> CudaCounter:
        torch.cuda.synchronize(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)
        return self

    def __exit__(self, *error: Any) -> None:
        torch.cuda.reset_peak_memory_stats(self.device)

    def now(self) -> int:
        """Bytes of all tensors on the device, also those of others in this process."""
        return torch.cuda.memory_allocated(self.device)

    def peak(self) -> int:
        """Most bytes since the last call, without what the allocator holds back."""
        most = torch.cuda.max_memory_allocated(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)
        return most


class StorageCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up the storages of all tensors that torch's operators make and that are still alive.

    For devices without counters. What a kernel needs for a moment inside of itself is not seen.
    ``known``: tensors that are there from the start.
    """

    source = "bytes of the tensors that are alive; without what kernels need inside of themselves"

    def __init__(self, known: Iterable[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._alive: dict[int, int] = {}
        self._total = 0
        self._most = 0
        for tensor in known:
            self._add(tensor)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self._add(leaf)
        return result

    def _add(self, tensor: Tensor) -> None:
        try:
            storage = tensor.untyped_storage()
        except NotImplementedError:  # a tensor without memory of its own
            return
        key = storage._cdata
        if key in self._alive:
            return
        self._alive[key] = size = storage.nbytes()
        self._total += size
        self._most = max(self._most, self._total)
        weakref.finalize(storage, self._remove, key)

    def _remove(self, key: int) -> None:
        self._total -= self._alive.pop(key, 0)

    def now(self) -> int:
        """Bytes of the tensors that are alive."""
        return self._total

    def peak(self) -> int:
        """Most bytes since the last call."""
        most, self._most = self._most, self._total
        return most
