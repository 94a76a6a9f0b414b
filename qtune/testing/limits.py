"""Bounds on metrics, such as ``min_cosine=0.99``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from qtune.errors import ArgumentError
from qtune.profiler.metric import Metric, MetricInfo
from qtune.testing.arguments import check_limit

_ALL_DIGITS = 17
"""So many tell one float64 from any other."""


@dataclass(frozen=True, slots=True)
class Limit:
    """A bound on a metric: ``min_cosine=0.99`` is COSINE >= 0.99."""

    key: str
    metric: MetricInfo
    bound: float

    def holds(self, value: float | None) -> bool:
        """Whether ``value`` is within the bound; NaN never is, n/a (nothing to compare) always."""
        if value is None:
            return True
        return value >= self.bound if self.metric.ascending else value <= self.bound

    def worst(self, values: Sequence[float | None]) -> int:
        """Index of the worst value."""
        return max(range(len(values)), key=lambda i: self.metric.badness(values[i]))

    def shown(self, value: float | None) -> str:
        """``value`` in a headline: ``COSINE 0.98``, with the digits that the bound asks for."""
        return f"{self.metric} {'n/a' if value is None else telling(value, self.holds)}"

    def __str__(self) -> str:
        return f"{'>=' if self.metric.ascending else '<='} {shortest(self.bound)}"


def telling(value: float, holds: Callable[[float], bool], digits: int = 5) -> str:
    """``value`` in ``digits`` digits, or in as many more as a broken bound takes to look broken.

    >>> telling(1.0000004, lambda v: v <= 1), telling(0.25, lambda v: v <= 1)
    ('1.0000004', '0.25')
    """
    for count in range(digits, _ALL_DIGITS):
        text = f"{value:.{count}g}"
        if holds(float(text)) == holds(value):
            return text
    return repr(float(value))


def shortest(value: float) -> str:
    """The shortest text that is exactly ``value``; whole numbers without a point."""
    text = repr(float(value))
    return text.removesuffix(".0")


METRICS = {"min_cosine": "COSINE", "min_sqnr_db": "SQNR", "max_atol": "ATOL", "max_l1": "L1"}
"""Argument of an assertion -> metric it bounds."""


_MOST_COSINE = 1.0


def limits_of(check: str, given: Mapping[str, float | None]) -> list[Limit]:
    """The bounds that were given, by argument; refuses what is no number, or can never hold."""
    return [
        Limit(name.partition("_")[2], Metric.get_metric(METRICS[name]), bound_of(check, name, v))
        for name, v in given.items()
        if v is not None
    ]


def bound_of(check: str, name: str, value: float) -> float:
    """``value`` as a bound that some model may keep."""
    metric = METRICS.get(name, "")
    is_least = name.startswith("min_")
    return reachable(check, name, value, metric=metric, ascending=is_least)


def reachable(check: str, name: str, value: float, *, metric: str, ascending: bool) -> float:
    """``value`` as a bound on ``metric``; ``ascending``: larger is better, so it is the least."""
    bound = check_limit(check, name, value)
    if metric == "COSINE" and bound > _MOST_COSINE:
        raise ArgumentError(
            f"{check}: {name} can't be met: a cosine is at most 1 but got {value}; 99 % is 0.99"
        )
    if not ascending and bound < 0:
        raise ArgumentError(
            f"{check}: {name} can't be met: an error is never below 0 but got {value}"
        )
    return bound
