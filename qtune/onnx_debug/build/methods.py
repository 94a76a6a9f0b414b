"""How a threshold is found on the histogram of a tensor: max, percentile, kl, mix.

Ranges are those of ``qtune.arith`` (docs/numerics.md section 4).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from qtune.arith.histogram import bin_width, doublings, magnitude_counts, merged
from qtune.arith.ranges import least_squares_range, mix_candidates, percentile_range
from qtune.arith_fast.ranges import kl_range
from qtune.dtype import QuantDType

Array = np.ndarray[Any, Any]

METHODS = ("max", "percentile", "kl", "mix")
BINS, MOST_BINS = 1024, 16384
PERCENTILE = 0.99995
"""Share that ``percentile`` keeps where no other is given."""


@dataclass(frozen=True, slots=True)
class Method:
    """A way to a threshold. ``mix``: of several percentiles the one with the least squared error.

    ``percentile``: share of the magnitudes that it covers (1.0: all). ``bins``: of the histogram
    over the range of the first item; a larger item adds bins of this width up to ``most_bins``,
    beyond which neighbours are joined.
    """

    name: str
    percentile: float = 1.0
    bins: int = BINS
    most_bins: int = MOST_BINS

    @property
    def label(self) -> str:
        """What log and files call it."""
        if self.name in ("kl", "mix"):
            return self.name if self.bins == BINS else f"{self.name} with {self.bins} bins"
        return self.name if self.percentile == 1.0 else f"{self.name} {self.percentile:g}"


AUTOMATIC = (
    Method("max"),
    Method("percentile", 0.9999),
    Method("percentile", PERCENTILE),
    Method("kl"),
)
"""What is tried where no method is given."""


def needs_histogram(method: Method) -> bool:
    """Whether the largest magnitude alone does not tell the threshold."""
    return method.name in ("kl", "mix") or method.percentile < 1.0


class Magnitudes:
    """The histogram of a tensor's magnitudes, and the largest of them, as items come."""

    __slots__ = ("bins", "counts", "most_bins", "top", "width")

    def __init__(self, bins: int, most_bins: int) -> None:
        self.bins, self.most_bins = bins, most_bins
        self.top = np.float32(0)
        self.width = np.float32(0)
        self.counts = np.zeros(bins, np.int64)

    def add(self, array: Array, top: np.float32) -> None:
        """Count an item whose largest magnitude is ``top``."""
        if self.width == 0 and top > 0:  # zeros so far lie in the first bin of any width
            self.width = bin_width(top, self.bins)
        self.top = max(self.top, top)
        wanted = self.bins if self.width == 0 else int(np.ceil(float(top) / float(self.width)))
        size = min(max(wanted, self.counts.size), self.most_bins)
        self.counts = np.pad(self.counts, (0, size - self.counts.size))
        k = doublings(self.width, size, top)
        if k:
            self.counts = merged(self.counts, k)
            self.width = np.float32(self.width * 2.0**k)
        self.counts += magnitude_counts(array, self.width, size)

    def range(self, method: Method, dtype: QuantDType) -> np.float32:
        """The threshold by ``method`` on a grid of ``dtype``."""
        if method.name == "kl":
            return self._kl(dtype)
        if method.name == "mix":
            candidates = mix_candidates(self.counts, self.width, self.top)
            return least_squares_range(self.counts, self.width, candidates, dtype)
        if method.percentile == 1.0:
            return self.top
        return percentile_range(self.counts, self.width, self.top, method.percentile * 100)

    def _kl(self, dtype: QuantDType) -> np.float32:
        used = int(np.flatnonzero(self.counts).max(initial=0)) + 1
        counts = torch.from_numpy(self.counts[: max(used, dtype.qmax + 2)])[None]
        width, top = (torch.tensor([float(v)], dtype=torch.float32) for v in (self.width, self.top))
        return np.float32(kl_range(counts, width, top, dtype)[0].item())
