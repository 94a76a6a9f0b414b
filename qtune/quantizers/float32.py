"""Scales and statistics are float32 whatever the model's dtype is (numerics.md section 1)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn


class Float32Module(nn.Module):
    """A module whose buffers follow ``.to(device)`` but keep their dtype under ``.half()`` etc."""

    def _apply(self, fn: Callable[..., torch.Tensor], recurse: bool = True) -> Float32Module:
        def keep_dtype(tensor: torch.Tensor) -> torch.Tensor:
            moved = fn(tensor)
            return moved if moved.dtype == tensor.dtype else tensor.to(moved.device)

        super()._apply(keep_dtype, recurse)  # type: ignore[no-untyped-call]
        return self

    def _load_from_state_dict(
        self, state_dict: Mapping[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        if self._is_unsized():
            self._adopt_sizes(state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def _adopt_sizes(self, state_dict: Mapping[str, Any], prefix: str) -> None:
        for name, buffer in list(self.named_buffers(recurse=False)):
            loaded = state_dict.get(prefix + name)
            if loaded is None or loaded.dim() != buffer.dim() or not buffer.dim():
                continue
            if loaded.shape != buffer.shape:
                setattr(self, name, buffer.new_zeros(loaded.shape))
                self._sized(int(loaded.shape[-1]))
        for name, parameter in self.named_parameters(recurse=False):
            loaded = state_dict.get(prefix + name)
            if loaded is not None and loaded.dim() == 1 and loaded.shape != parameter.shape:
                parameter.data, parameter.grad = parameter.new_zeros(loaded.shape), None

    def _is_unsized(self) -> bool:
        """Whether the number of channels is left to the first data or loaded state."""
        return False

    def _sized(self, channels: int) -> None:
        """Called when a loaded state told the number of channels."""
