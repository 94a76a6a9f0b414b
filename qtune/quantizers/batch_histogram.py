"""What the observers share that search each batch's histogram of magnitudes."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import torch

from qtune.arith_fast.histogram import bin_widths, magnitude_counts, stretched
from qtune.quantizers.observer import Observer
from qtune.quantizers.processes import in_group, reduce_over_processes
from qtune.quantizers.statistics import Summary

BINS = 2048
"""Bins of a batch's histogram where no argument says otherwise."""


@dataclass(frozen=True, slots=True)
class HistogramSummary(Summary):
    """A batch's range and ``counts``, int64 [channels, bins] of magnitudes over [0, absmax]."""

    counts: torch.Tensor

    @property
    def width(self) -> torch.Tensor:
        """Width of the bins, float32 [channels]."""
        return bin_widths(self.absmax, self.counts.shape[1])

    def union(self, other: Any) -> HistogramSummary:
        """Both batches; bins of the narrower one go where their centres fall."""
        low, high = torch.minimum(self.low, other.low), torch.maximum(self.high, other.high)
        top = Summary(low, high).absmax
        parts = [stretched(part.counts, part.absmax, top) for part in (self, other)]
        return HistogramSummary(low, high, parts[0] + parts[1])


class BatchHistogramObserver(Observer):
    """Per batch a range found on its histogram; the moving average of these ranges.

    ``min_val`` and ``max_val`` are those of the data. Each grid is searched on its own, so that a
    change of dtype later equals a calibration in that dtype.
    """

    bins = BINS

    def _summarize(self, x: torch.Tensor, batch: Summary) -> HistogramSummary:
        width = bin_widths(batch.absmax, self.bins)
        counts = magnitude_counts(x, width, self.bins, self.ch_axis)
        if self.is_sync_quantize and in_group():
            reduce_over_processes(counts)
        return HistogramSummary(batch.low, batch.high, counts)

    def _ranges(self, seen: torch.Tensor, absmax: torch.Tensor, batch: Summary) -> torch.Tensor:
        if not isinstance(batch, HistogramSummary):
            raise TypeError(f"{self._where}: expected a HistogramSummary, got {batch!r}")
        return self._moved(seen, absmax, self._search(batch))

    @abstractmethod
    def _search(self, batch: HistogramSummary) -> torch.Tensor:
        """The range for each of ``GRIDS``: float32 [3, channels] (or [1, channels] for all)."""
