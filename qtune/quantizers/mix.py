"""The percentile with the least squared error of quantization (docs/numerics.md section 4)."""

from __future__ import annotations

import torch

from qtune.arith_fast.ranges import least_squares_range, mix_candidates
from qtune.quantizers.batch_histogram import BatchHistogramObserver, HistogramSummary
from qtune.quantizers.options import GRIDS


class MixObserver(BatchHistogramObserver):
    """Per batch, that of the ranges of five percentiles with the least squared error; their
    moving average.

    Candidates are the percentiles 99.9, 99.99, 99.999, 99.9999 and 100 of ``abs(x)``, found as by
    ``PercentileObserver``; the error is that of ``MSEObserver``; ties take the larger range.
    Source: plugin guide, "Introduction to Common Algorithms".
    """

    def _search(self, batch: HistogramSummary) -> torch.Tensor:
        tried = mix_candidates(batch.counts, batch.width, batch.absmax)
        found = [least_squares_range(batch.counts, batch.width, tried, grid) for grid in GRIDS]
        return torch.stack(found)
