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

_BLOCK = 65536
"""Values of a block: small beside any layer, large beside the cost of a call."""
_SUMS = 7


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
            largest = torch.maximum(largest, e.amax())
        sum_a, sum_b, aa, bb, ab, ee, sum_e = sums.tolist()
        return cls(x.numel(), sum_a, sum_b, aa, bb, ab, sum_e, ee, float(largest))


def extremes(value: Tensor) -> tuple[float, float] | None:
    """Smallest and largest value, of complex tensors as real ones; NaN shows in both.

    ``None`` for an empty tensor.
    """
    if value.numel() == 0:
        return None
    real = torch.view_as_real(value) if value.is_complex() else value
    low, high = torch.aminmax(real.byte() if real.dtype == torch.bool else real)
    return float(low), float(high)


def sums_of(a: Tensor, b: Tensor, *ends: tuple[float, float] | None) -> PairSums | None:
    """The sums of two tensors whose :func:`extremes` are ``ends``, where they have any."""
    real = a.is_floating_point() and b.is_floating_point() and a.shape == b.shape
    finite = all(end is not None and all(map(math.isfinite, end)) for end in ends)
    return PairSums.of(a, b) if real and finite else None


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
