"""Ranges cut at a given value, or at so many standard deviations (docs/numerics.md section 4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Unpack

import torch

from qtune.quantizers.observer import Observer
from qtune.quantizers.options import CommonOptions, positive_number
from qtune.quantizers.processes import in_group, reduce_over_processes
from qtune.quantizers.statistics import FLOAT32_MAX, Summary


class ClipObserver(Observer):
    """Per batch ``min(absmax, clip_value)``; the moving average of these ranges.

    ``clip_value``: positive, in the units of the data. ``min_val`` and ``max_val`` are those of the
    data.
    """

    def __init__(self, clip_value: float, *common: Any, **options: Unpack[CommonOptions]) -> None:
        super().__init__(*common, **options)
        self.clip_value = positive_number("clip_value", clip_value)

    def _ranges(self, seen: torch.Tensor, absmax: torch.Tensor, batch: Summary) -> torch.Tensor:
        return self._moved(seen, absmax, batch.absmax.clamp(max=self.clip_value)[None])


@dataclass(frozen=True, slots=True)
class MomentSummary(Summary):
    """A batch's range and ``moments``, float64 [3, channels]: count, sum, sum of squares."""

    moments: torch.Tensor

    def union(self, other: Any) -> MomentSummary:
        """Both batches."""
        low, high = torch.minimum(self.low, other.low), torch.maximum(self.high, other.high)
        return MomentSummary(low, high, self.moments + other.moments)


class ClipStdObserver(Observer):
    """Per batch ``min(absmax, abs(mean) + std_scale * std)``; the moving average of these ranges.

    ``std`` is the population's. ``min_val`` and ``max_val`` are those of the data.
    """

    def __init__(
        self, std_scale: float = 3.0, *common: Any, **options: Unpack[CommonOptions]
    ) -> None:
        super().__init__(*common, **options)
        self.std_scale = positive_number("std_scale", std_scale)

    def _summarize(self, x: torch.Tensor, batch: Summary) -> MomentSummary:
        moments = _moments(x, self.ch_axis, batch.low.numel())
        if self.is_sync_quantize and in_group():
            reduce_over_processes(moments)
        return MomentSummary(batch.low, batch.high, moments)

    def _ranges(self, seen: torch.Tensor, absmax: torch.Tensor, batch: Summary) -> torch.Tensor:
        if not isinstance(batch, MomentSummary):
            raise TypeError(f"{self._where}: expected a MomentSummary, got {batch!r}")
        count, total, squares = batch.moments
        mean = total / count
        deviation = (squares / count - mean.square()).clamp_(min=0).sqrt_()
        reach = (mean.abs() + self.std_scale * deviation).clamp_(max=FLOAT32_MAX)
        return self._moved(seen, absmax, torch.minimum(reach.float(), batch.absmax)[None])


def _moments(x: torch.Tensor, axis: int, channels: int) -> torch.Tensor:
    """Count, sum and sum of squares of the finite values of each channel: float64 [3, C]."""
    rows = x.reshape(1, -1) if axis == -1 else x.transpose(0, axis).reshape(x.shape[axis], -1)
    if rows.numel() == 0:
        return torch.zeros((3, channels), dtype=torch.float64, device=x.device)
    if rows.dtype == torch.float64:
        rows = torch.where(rows.isfinite(), rows.clamp(-FLOAT32_MAX, FLOAT32_MAX), rows)
    total = rows.sum(1, dtype=torch.float64)
    count = torch.full_like(total, rows.shape[1])
    if not bool(total.isfinite().all()):
        finite = rows.isfinite()
        rows, count = torch.where(finite, rows, 0), finite.sum(1).double()
        total = rows.sum(1, dtype=torch.float64)
    norm = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
    return torch.stack([count, total, norm.square()])
