"""The range that leaves out the largest values (docs/numerics.md section 4)."""

from __future__ import annotations

from typing import Any, Unpack

import torch

from qtune.arith_fast.ranges import percentile_range
from qtune.quantizers.batch_histogram import BINS, BatchHistogramObserver, HistogramSummary
from qtune.quantizers.options import CommonOptions, positive_number, whole_number

MOST_BINS = 1 << 20
"""Most bins of a histogram."""


class PercentileObserver(BatchHistogramObserver):
    """Per batch, the range that ``percentile`` % of ``abs(x)`` lie in; their moving average.

    It is the upper edge of the bin that the percentile falls in, on a histogram of ``bins`` equal
    bins over [0, absmax] (``absmax`` itself where that bin is the last with data). The same for
    every dtype. Source: plugin guide, "Introduction to Common Algorithms".
    """

    def __init__(
        self,
        percentile: float = 99.99,
        bins: int = BINS,
        *common: Any,
        **options: Unpack[CommonOptions],
    ) -> None:
        super().__init__(*common, **options)
        self.percentile = positive_number("percentile", percentile, 100.0)
        self.bins = whole_number("bins", bins, 1, MOST_BINS)

    def _search(self, batch: HistogramSummary) -> torch.Tensor:
        return percentile_range(batch.counts, batch.width, batch.absmax, self.percentile)[None]
