"""The modes around a call that decide its result: autocast and grad mode."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

import torch

AUTOCAST = "autocast"
GRAD = "grad"
"""Keys of ``node.meta``, present where the mode differed from the one around the model."""


class Ambient:
    """The modes as they are at construction, around the model."""

    def __init__(self) -> None:
        self._devices = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
        self._autocast = self._autocast_now()
        self._grad = torch.is_grad_enabled()

    def changes(self) -> Mapping[str, Any]:
        """What the model's own ``with`` statements have changed until now, as meta entries."""
        changed: dict[str, Any] = {}
        autocast = self._autocast_now()
        if autocast != self._autocast:
            pairs = zip(autocast, self._autocast, strict=True)
            changed[AUTOCAST] = tuple(now for now, before in pairs if now != before)
        if torch.is_grad_enabled() != self._grad:
            changed[GRAD] = torch.is_grad_enabled()
        return changed

    def _autocast_now(self) -> tuple[tuple[str, bool, torch.dtype], ...]:
        return tuple(
            (device, torch.is_autocast_enabled(device), torch.get_autocast_dtype(device))
            for device in self._devices
        )


def in_modes(call: Callable[..., Any], meta: Mapping[str, Any]) -> Callable[..., Any]:
    """``call`` under the modes that ``meta`` names; ``call`` itself if it names none."""
    if AUTOCAST not in meta and GRAD not in meta:
        return call

    def wrapped(*args: Any) -> Any:
        with ExitStack() as stack:
            for device, enabled, dtype in meta.get(AUTOCAST, ()):
                stack.enter_context(torch.autocast(device, dtype=dtype, enabled=enabled))
            if GRAD in meta:
                stack.enter_context(torch.set_grad_enabled(meta[GRAD]))
            return call(*args)

    return wrapped
