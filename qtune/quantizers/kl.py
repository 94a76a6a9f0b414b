"""The range whose quantized data diverge least from the data (docs/numerics.md section 4)."""

from __future__ import annotations

from typing import Any, Unpack

import torch

from qtune.arith_fast.ranges import kl_range
from qtune.dtype import QuantDType, qint8
from qtune.quantizers.options import CommonOptions, whole_number
from qtune.quantizers.running_histogram import RunningHistogramObserver

MOST_BATCHES = (1 << 31) - 1


class KLObserver(RunningHistogramObserver):
    """The range with the least Kullback-Leibler divergence between data and quantized data.

    One histogram of ``bins`` bins collects all data; each ``update_interval`` batches the range is
    searched on it (docs/numerics.md section 4). Before the first search there is no scale, so
    ``update_interval`` must not exceed the number of batches. The histogram is not saved. A qint16
    scale covers all data: a grid with more codes than bins loses nothing that a histogram shows.
    Source: plugin guide, "Observer Parameter Documentation".
    """

    _least_bins = qint8.qmax + 2
    _why_bins = " (the search needs more bins than qint8 has codes of one sign)"

    def __init__(
        self,
        bins: int = 512,
        update_interval: int = 1,
        *common: Any,
        **options: Unpack[CommonOptions],
    ) -> None:
        super().__init__(bins, *common, **options)
        self.update_interval = whole_number("update_interval", update_interval, 1, MOST_BATCHES)

    @property
    def waiting(self) -> str:
        """How many batches the first search still needs."""
        if bool(self.observed) or not 0 < self._batches < self.update_interval:
            return ""
        return f"update_interval {self.update_interval} is more than the {self._batches} batches"

    def _is_due(self) -> bool:
        return self._batches % self.update_interval == 0

    def _search(self, grid: QuantDType) -> torch.Tensor:
        return kl_range(self.histogram, self.bin_width, self.peak, grid)
