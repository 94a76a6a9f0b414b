"""The range with the least squared error of quantization (docs/numerics.md section 4)."""

from __future__ import annotations

from typing import Any, Unpack

import torch

from qtune.arith.ranges import MSE_STEPS
from qtune.arith_fast.ranges import least_squares_range, mse_candidates
from qtune.quantizers.batch_histogram import BatchHistogramObserver, HistogramSummary
from qtune.quantizers.options import GRIDS, CommonOptions, whole_number


class MSEObserver(BatchHistogramObserver):
    """Per batch, the range with the least squared error; the moving average of these ranges.

    Candidates are ``absmax * i / 100`` for i = 100 down to 1 in steps of ``stride``; the error is
    taken on a histogram of ``abs(x)`` with 2048 bins, at the bins' centres; ties take the larger
    range. Source: plugin guide, "Introduction to Common Algorithms".
    """

    def __init__(
        self,
        stride: int = 1,
        *common: Any,
        **options: Unpack[CommonOptions],
    ) -> None:
        super().__init__(*common, **options)
        self.stride = whole_number("stride", stride, 1, MSE_STEPS)

    def _search(self, batch: HistogramSummary) -> torch.Tensor:
        tried = mse_candidates(batch.absmax, self.stride)
        found = [least_squares_range(batch.counts, batch.width, tried, grid) for grid in GRIDS]
        return torch.stack(found)
