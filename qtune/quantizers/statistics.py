"""Minimum and maximum of one batch, per tensor or per channel, also over all processes."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import Any

import torch

from qtune.errors import NonFiniteError
from qtune.quantizers.processes import in_group, reduce_over_processes

_log = logging.getLogger(__name__)
FLOAT32_MAX = torch.finfo(torch.float32).max
_NAN = "NaN"
_ONLY_INFINITE = "nothing but infinities"
_FAULTS = ("", _NAN, _ONLY_INFINITE)


@dataclass(frozen=True, slots=True)
class Summary:
    """What an observer needs from one batch: ``low`` and ``high``, float32 [channels]."""

    low: torch.Tensor
    high: torch.Tensor

    @property
    def absmax(self) -> torch.Tensor:
        """Largest magnitude, float32 [channels]."""
        return torch.maximum(self.low.abs(), self.high.abs())

    def union(self, other: Any) -> Summary:
        """The summary of both batches' data, of the same kind as both."""
        return Summary(torch.minimum(self.low, other.low), torch.maximum(self.high, other.high))


def batch_range(
    x: torch.Tensor, axis: int, channels: int, where: str, synchronize: bool
) -> Summary | None:
    """Smallest and largest finite value of ``x`` per channel; ``None`` without any element.

    Infinities are left out (they saturate, numerics.md section 1) with a line in the log.
    ``synchronize``: over all processes of ``torch.distributed``, which all must call this.
    Raises ``NonFiniteError`` on NaN, and where a channel holds nothing but infinities.
    """
    low, high, fault = _local_range(x, axis, channels, where)
    if synchronize and in_group():
        flag = low.new_full((1,), float(_FAULTS.index(fault)))
        packed = reduce_over_processes(torch.cat([-low, high, flag]), largest=True)
        low, high, fault = -packed[:channels], packed[channels:-1], _FAULTS[int(packed[-1])]
    if fault:
        raise NonFiniteError(
            f"{where}: {fault} in the data, so there is no range to derive a scale from. Remove "
            "it from the calibration data, or mend the operator that makes it."
        )
    if x.numel() == 0 and bool((high == -torch.inf).all()):
        return None
    return Summary(low, high)


def _local_range(
    x: torch.Tensor, axis: int, channels: int, where: str
) -> tuple[torch.Tensor, torch.Tensor, str]:
    nothing = torch.full((channels,), torch.inf, dtype=torch.float32, device=x.device)
    if x.numel() == 0:
        return nothing, -nothing, ""
    low, high = _extremes(x, axis)
    if _all_finite(low, high):
        return _as_float32(low), _as_float32(high), ""
    if bool(x.isnan().any()):
        return nothing, -nothing, _NAN
    finite = x.isfinite()
    low, _ = _extremes(torch.where(finite, x, torch.inf), axis)
    _, high = _extremes(torch.where(finite, x, -torch.inf), axis)
    if bool((low > high).any()):
        return nothing, -nothing, _ONLY_INFINITE
    left_out = x.numel() - int(finite.sum())
    _log.warning("%s: %d infinite values left out of the statistics", where, left_out)
    return _as_float32(low), _as_float32(high), ""


def _all_finite(low: torch.Tensor, high: torch.Tensor) -> bool:
    if low.numel() == 1:
        return math.isfinite(low.item()) and math.isfinite(high.item())
    return bool((low.isfinite() & high.isfinite()).all())


def _extremes(x: torch.Tensor, axis: int) -> tuple[torch.Tensor, torch.Tensor]:
    if axis == -1:
        low, high = torch.aminmax(x)
        return low.reshape(1), high.reshape(1)
    others = [d for d in range(x.dim()) if d != axis]
    return (torch.amin(x, others), torch.amax(x, others)) if others else (x, x)


def _as_float32(value: torch.Tensor) -> torch.Tensor:
    if value.dtype == torch.float64:
        value = value.clamp(-FLOAT32_MAX, FLOAT32_MAX)
    return value.to(torch.float32)
