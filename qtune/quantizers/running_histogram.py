"""What the observers share that keep one histogram over all data seen."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, Unpack

import torch

from qtune.arith_fast.histogram import bin_widths, doublings, magnitude_counts, merged
from qtune.dtype import QuantDType
from qtune.quantizers.observer import HISTOGRAM, Observer
from qtune.quantizers.options import GRIDS, CommonOptions, whole_number
from qtune.quantizers.percentile import MOST_BINS
from qtune.quantizers.processes import in_group, reduce_over_processes
from qtune.quantizers.statistics import Summary


class RunningHistogramObserver(Observer):
    """A range found on the histogram of all magnitudes seen so far, of constant size.

    The bins' width is set by the first batch that is not all zero and doubles when a later one
    reaches further: bins are merged in pairs, so that no count is lost and the counts are those of
    all data at the final width, whatever came first. Memory: ``8 * bins`` bytes per channel.

    The result covers all data and is not averaged; ``averaging_constant`` moves ``min_val`` and
    ``max_val``, and 0 stops everything after the first result. Where the scale came from elsewhere
    (a loaded state without this histogram), new results move it by ``averaging_constant``.

    Buffers besides the observer's: ``histogram`` int64 [C, bins]; ``bin_width`` and ``peak``, the
    largest magnitude, float32 [C].
    """

    histogram: torch.Tensor
    bin_width: torch.Tensor
    peak: torch.Tensor

    _batches = 0
    """Batches in the histogram."""
    _is_partial = False
    """Whether the scale also stands for data that are not in the histogram."""

    def __init__(self, bins: int, *common: Any, **options: Unpack[CommonOptions]) -> None:
        self.bins = whole_number("bins", bins, self._least_bins, MOST_BINS, self._why_bins)
        super().__init__(*common, **options)

    _least_bins = 1
    _why_bins = ""

    def _allocate(self, channels: int, device: torch.device | str | None) -> None:
        super()._allocate(channels, device)
        counts = torch.zeros((channels, self.bins), dtype=torch.int64, device=device)
        self.register_buffer("histogram", counts, persistent=False)
        for name in ("bin_width", "peak"):
            zeros = torch.zeros(channels, dtype=torch.float32, device=device)
            self.register_buffer(name, zeros, persistent=False)
        self._batches, self._is_partial = 0, False

    def forget(self) -> None:
        """Drop the histogram too."""
        super().forget()
        self._batches, self._is_partial = 0, False

    def _summarize(self, x: torch.Tensor, batch: Summary) -> Summary:
        self._batches += self._is_first_call()
        self._reach(batch.absmax)
        counts = magnitude_counts(x, self.bin_width, self.bins, self.ch_axis)
        if self.is_sync_quantize and in_group():
            reduce_over_processes(counts)
        self.histogram += counts
        return batch

    def _reach(self, top: torch.Tensor) -> None:
        """Make the bins wide enough for magnitudes up to ``top``."""
        growth = doublings(self.bin_width, self.bins, top)
        if bool(growth.any()):
            self.histogram.copy_(merged(self.histogram, growth))
        wider = self.bin_width.double() * torch.pow(2.0, growth.double())
        width = torch.where(self.bin_width > 0, wider.float(), bin_widths(top, self.bins))
        self.bin_width.copy_(width)
        self.peak.copy_(torch.maximum(self.peak, top))

    def _statistics(self) -> tuple[torch.Tensor, ...]:
        observed, *others = super()._statistics()
        return observed | (self._batches > 1), *others

    def _ranges(
        self, seen: torch.Tensor, absmax: torch.Tensor, batch: Summary
    ) -> torch.Tensor | None:
        if not self._is_due():
            return None
        found = self._searched()
        return self._moved(seen, absmax, found) if self._is_partial else found

    def _is_due(self) -> bool:
        """Whether this batch asks for a result."""
        return True

    def _searched(self) -> torch.Tensor:
        return torch.stack([self._search(grid) for grid in GRIDS])

    @abstractmethod
    def _search(self, grid: QuantDType) -> torch.Tensor:
        """The range for ``grid``, found on the histogram: float32 [channels]."""

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, *args)
        if f"{prefix}absmax" in state_dict:
            loaded = [state_dict.get(prefix + name) for name in HISTOGRAM]
            self._restart([part for part in loaded if part is not None])

    def _restart(self, loaded: list[torch.Tensor]) -> None:
        """Begin an empty histogram: the old one is not of the data of the loaded state."""
        shape = (self.threshold.numel(), self.bins)
        if self.histogram.shape != shape or self.histogram.device != self.threshold.device:
            self.histogram = self.histogram.new_empty(shape, device=self.threshold.device)
            self.bin_width = torch.empty_like(self.threshold)
            self.peak = torch.empty_like(self.threshold)
        for name in HISTOGRAM:
            getattr(self, name).zero_()
        self._batches = 0
        self._is_partial = not self.observed.is_meta and bool(self.observed)
