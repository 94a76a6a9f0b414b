"""Statistics and distances of two tensors in one pass over their values, in float64.

Metrics that are quotients of a few sums share the pass: the values are widened block by block, so
that nothing larger than a block is made. What is no finite real tensor has no sums; its metrics
are computed one by one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from qtune.profiler.metric import Metric, MetricInfo

_BLOCK = 32768
"""Values of a block: it stays in the cache of a core."""
_SUMS = 7


@dataclass(frozen=True, slots=True)
class Stats:
    """Smallest, largest and mean value of a tensor; NaN shows in all of them."""

    low: float
    high: float
    mean: float

    @property
    def is_finite(self) -> bool:
        """Whether no value is NaN or infinite."""
        return math.isfinite(self.low) and math.isfinite(self.high)


@dataclass(frozen=True, slots=True)
class PairSums:
    """What the distances of ``a`` (the baseline) and ``b`` need. ``e = a - b``, in float64."""

    count: int
    sum_a: float
    sum_b: float
    squares_a: float
    squares_b: float
    products: float
    sum_e: float
    squares_e: float
    largest_e: float

    @classmethod
    def of(cls, a: Tensor, b: Tensor) -> PairSums:
        """The sums of two finite real tensors of one shape that are not empty."""
        x, y = a.detach().flatten(), b.detach().flatten()
        sums = torch.zeros(_SUMS, dtype=torch.float64)
        largest = torch.zeros((), dtype=torch.float64)
        wide = torch.empty(3, min(_BLOCK, x.numel()), dtype=torch.float64)
        for start in range(0, x.numel(), _BLOCK):
            part = slice(start, start + _BLOCK)
            size = min(_BLOCK, x.numel() - start)
            p, q, e = wide[0, :size], wide[1, :size], wide[2, :size]
            p.copy_(x[part])
            q.copy_(y[part])
            torch.sub(p, q, out=e)
            squares = (p.dot(p), q.dot(q), p.dot(q), e.dot(e))
            e.abs_()
            sums += torch.stack((p.sum(), q.sum(), *squares, e.sum()))
            largest = torch.maximum(largest, e.max())
        sum_a, sum_b, aa, bb, ab, ee, sum_e = sums.tolist()
        return cls(x.numel(), sum_a, sum_b, aa, bb, ab, sum_e, ee, float(largest))


def stats(value: Tensor) -> Stats | None:
    """Statistics of a tensor, complex ones as real; ``None`` for an empty one."""
    if value.numel() == 0:
        return None
    real = torch.view_as_real(value) if value.is_complex() else value
    low, high = torch.aminmax(real.byte() if real.dtype == torch.bool else real)
    mean = real.mean(dtype=torch.float64)
    return Stats(float(low), float(high), float(mean))


def distance(metric: MetricInfo, a: Tensor, b: Tensor, sums: PairSums | None) -> float | None:
    """The value of ``metric`` (scope pertensor), from ``sums`` where it is made of them."""
    formula = _FORMULAS.get(metric.name)
    if sums is None or formula is None or metric is not _BUILT_IN[metric.name]:
        return metric(a, b)
    return formula(sums)


def _cosine(s: PairSums) -> float:
    if s.largest_e == 0:
        return 1.0
    norms = math.sqrt(s.squares_a) * math.sqrt(s.squares_b)
    return s.products / norms if norms else 0.0


def _sqnr(s: PairSums) -> float:
    if s.squares_e == 0:
        return math.inf
    return 10 * math.log10(s.squares_a / s.squares_e) if s.squares_a else -math.inf


_FORMULAS: Mapping[str, Callable[[PairSums], float]] = MappingProxyType(
    {
        "ATOL": lambda s: s.largest_e,
        "L1": lambda s: s.sum_e / s.count,
        "MSE": lambda s: s.squares_e / s.count,
        "COSINE": _cosine,
        "SQNR": _sqnr,
    }
)
_BUILT_IN = {name: Metric.get_metric(name) for name in _FORMULAS}
