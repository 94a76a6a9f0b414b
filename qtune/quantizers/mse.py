"""The range with the least squared error of quantization (numerics.md section 5)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from qtune.dtype import QuantDType
from qtune.errors import ArgumentError
from qtune.quantizers.observer import GRIDS, Observer
from qtune.quantizers.statistics import Summary

BINS = 2048
STEPS = 100
_CHUNK = 1 << 21
"""Elements of the search held at once (candidates x channels x bins), bounds its memory."""


@dataclass(frozen=True, slots=True)
class HistogramSummary(Summary):
    """A batch's range and its histogram of magnitudes.

    ``counts`` int64 [channels, BINS] over ``[0, top]``, ``top`` float32 [channels].
    """

    counts: torch.Tensor
    top: torch.Tensor


class MSEObserver(Observer):
    """Per batch, the range with the least squared error; the moving average of these ranges.

    Candidates are ``absmax * i / 100`` for i = 100 down to 1 in steps of ``stride``; the error is
    taken on a histogram of ``abs(x)`` with 2048 bins, at the bins' centres; ties take the larger
    range. ``min_val`` and ``max_val`` are those of the data. Each grid is searched on its own, so
    that a change of dtype later equals a calibration in that dtype.
    """

    def __init__(
        self,
        stride: int = 1,
        averaging_constant: float = 0.01,
        ch_axis: int = -1,
        dtype: QuantDType | torch.dtype | str = "qint8",
        qscheme: torch.qscheme = torch.per_tensor_symmetric,
        quant_min: int | None = None,
        quant_max: int | None = None,
        is_sync_quantize: bool = False,
        factory_kwargs: Mapping[str, Any] | None = None,
        *,
        channel_len: int | None = None,
    ) -> None:
        super().__init__(
            averaging_constant,
            ch_axis,
            dtype,
            qscheme,
            quant_min,
            quant_max,
            is_sync_quantize,
            factory_kwargs,
            channel_len=channel_len,
        )
        if not isinstance(stride, int) or not 1 <= stride <= STEPS:
            raise ArgumentError(f"stride: expected a whole number from 1 to 100, got {stride!r}")
        self.stride = stride

    def _summarize(self, x: torch.Tensor, batch: Summary) -> HistogramSummary:
        counts = histogram(x, batch.absmax, self.ch_axis)
        if self.is_sync_quantize and dist.is_available() and dist.is_initialized():
            dist.all_reduce(counts)
        return HistogramSummary(batch.low, batch.high, counts, batch.absmax)

    def _merge(self, first: Summary, second: Summary) -> Summary:
        if not isinstance(first, HistogramSummary) or not isinstance(second, HistogramSummary):
            return super()._merge(first, second)
        both = super()._merge(first, second)
        counts = rebin(first, both.absmax) + rebin(second, both.absmax)
        return HistogramSummary(both.low, both.high, counts, both.absmax)

    def _average(self, before: tuple[torch.Tensor, ...], batch: Summary) -> None:
        super()._average(before, batch)
        observed, _, _, absmax = before
        if isinstance(batch, HistogramSummary):
            best = torch.stack([best_range(batch, grid, self.stride) for grid in GRIDS])
            self.absmax.copy_(self._moved(observed, absmax, best))


def histogram(x: torch.Tensor, top: torch.Tensor, axis: int) -> torch.Tensor:
    """Count ``abs(x)`` in 2048 equal bins of [0, top]: int64 [channels, BINS].

    Infinities are left out; what lies at ``top`` belongs to the last bin.
    """
    channels = top.numel()
    rows = x.reshape(1, -1) if axis == -1 else x.transpose(0, axis).reshape(x.shape[axis], -1)
    if rows.numel() == 0:
        return torch.zeros((channels, BINS), dtype=torch.int64, device=top.device)
    magnitude = rows.to(torch.float32).abs()
    width = torch.where(top > 0, top / BINS, 1.0)[:, None]
    index = (magnitude / width).clamp_(max=BINS - 1).to(torch.int64)
    index += torch.arange(channels, device=top.device)[:, None] * BINS
    finite = rows.isfinite()
    index = index.flatten() if bool(finite.all()) else index[finite]
    return torch.bincount(index, minlength=channels * BINS).reshape(channels, BINS)


def rebin(summary: HistogramSummary, top: torch.Tensor) -> torch.Tensor:
    """The counts over [0, top] for a ``top`` at least the summary's: each bin goes where its
    centre falls.
    """
    if torch.equal(summary.top, top):
        return summary.counts
    ratio = torch.where(top > 0, summary.top / top, 1.0)[:, None]
    index = (_centres(top.device) * ratio).clamp_(max=BINS - 1).to(torch.int64)
    return torch.zeros_like(summary.counts).scatter_add_(1, index, summary.counts)


def best_range(batch: HistogramSummary, grid: QuantDType, stride: int) -> torch.Tensor:
    """The candidate with the least squared error of the batch on ``grid``: float32 [channels]."""
    steps = torch.arange(STEPS, 0, -stride, device=batch.top.device, dtype=torch.float32)
    candidates = batch.top * steps[:, None] / STEPS
    per_chunk = max(1, _CHUNK // batch.counts.numel())
    errors = [_errors(batch, part, grid) for part in torch.split(candidates, per_chunk)]
    best = torch.cat(errors).argmin(dim=0)
    return candidates.gather(0, best[None])[0]


def _errors(batch: HistogramSummary, candidates: torch.Tensor, grid: QuantDType) -> torch.Tensor:
    """Squared errors, float64 [candidates, channels]."""
    used = batch.counts.any(dim=0)
    value = _centres(batch.top.device)[used] * (batch.top[:, None] / BINS)
    scale = (candidates / grid.divisor).clamp_min(torch.finfo(torch.float32).tiny)[..., None]
    error = (value / scale).add_(0.5).floor_().clamp_(max=grid.qmax).mul_(scale).sub_(value)
    counts = batch.counts[:, used].to(torch.float64)
    return (error.to(torch.float64).square_() * counts).sum(dim=-1)


def _centres(device: torch.device) -> torch.Tensor:
    return torch.arange(BINS, device=device, dtype=torch.float32) + 0.5
