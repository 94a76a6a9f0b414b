"""Which sets of stubs to measure: prefixes of a ranking, more of them where the score moves."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from qtune.analysis.raising import Raised, Raising
from qtune.analysis.tune_costs import Costs
from qtune.analysis.tune_scores import Score
from qtune.errors import AnalysisError
from qtune.profiler.tune_front import Budget, TunePoint, badness
from qtune.qconfig.sensitivity import Entry
from qtune.report.progress import Bar


@dataclass(slots=True)
class Search:
    """Measures sets of stubs; each once.

    ``latency()``: of the model as it is now. ``skipped``: stubs that the model can't have in int16,
    with the reason.
    """

    raising: Raising
    costs: Costs
    score: Score
    budget: Budget
    latency: Callable[[], float]
    bar: Bar
    skipped: dict[str, str] = field(default_factory=dict)
    points: dict[frozenset[Entry], TunePoint] = field(default_factory=dict)
    _latencies: dict[frozenset[Entry], float] = field(default_factory=dict)

    def run(self, order: Sequence[Entry], most: int) -> None:
        """Measure up to ``most`` prefixes of ``order``, the empty and the longest one included."""
        steps = self._within_latency(self._steps(order))
        taken: dict[int, TunePoint] = {}
        last = len(steps) - 1
        for size in first_sizes(last):
            if len(taken) < most - 1 or size == last:
                taken[size] = self._measured(steps[size])
        while len(taken) < most:
            middle = between(taken, ascending=self.score.ascending)
            if middle is None:
                return
            taken[middle] = self._measured(steps[middle])

    def added_cycles(self, entry: Entry) -> float | None:
        """Cycles that one stub alone costs; ``None``, and a reason, where it can't be raised."""
        plan = self.raising.plan([entry])
        if isinstance(plan, str):
            self.skipped[" ".join(entry)] = plan
            return None
        before = self.costs.cycles(self.raising.nothing.resolution)
        return self.costs.cycles(plan.resolution) - before

    def latency_of(self, point: TunePoint) -> TunePoint:
        """The point with its latency."""
        plan = self.raising.plan(point.ports)
        if isinstance(plan, str):
            raise AnalysisError(f"tune: {plan}")
        return replace(point, latency_us=self._latency(plan))

    def _steps(self, order: Sequence[Entry]) -> list[Raised]:
        """The sets that grow along ``order``; what does not fit, or costs too much, is left out."""
        steps = [self.raising.nothing]
        for entry in order:
            if entry in steps[-1].entries:
                continue
            plan = self.raising.plan((*steps[-1].entries, entry))
            if isinstance(plan, str):
                self.skipped.setdefault(" ".join(entry), f"beside the others: {plan}")
            elif self._within(plan):
                steps.append(plan)
        return steps

    def _within(self, plan: Raised) -> bool:
        limit = self.budget
        share = self.costs.int16_share(plan.resolution)
        too_many = limit.stubs is not None and len(plan.entries) > limit.stubs
        return not too_many and (limit.int16_macs is None or share <= limit.int16_macs)

    def _within_latency(self, steps: list[Raised]) -> list[Raised]:
        """The steps up to the last one within the limit; latency grows along them."""
        limit = self.budget.latency_us
        if limit is None:
            return steps
        low, high = 0, len(steps)
        while high - low > 1:
            middle = (low + high) // 2
            fits = self._latency(steps[middle]) <= limit
            low, high = (middle, high) if fits else (low, middle)
        return steps[: low + 1]

    def _measured(self, step: Raised) -> TunePoint:
        key = frozenset(step.entries)
        if key not in self.points:
            self.raising.apply(step)
            mean, worst = self.score.measure()
            share = self.costs.int16_share(step.resolution)
            latency = None if self.budget.latency_us is None else self._latency(step)
            self.points[key] = TunePoint(step.entries, share, latency, mean, worst)
        self.bar.advance(f"{len(step.entries)} stubs")
        return self.points[key]

    def _latency(self, step: Raised) -> float:
        key = frozenset(step.entries)
        if key not in self._latencies:
            self.raising.apply(step)
            self._latencies[key] = self.latency()
        return self._latencies[key]


def first_sizes(longest: int) -> list[int]:
    """0, 1, 2, 3, 4, 6, 8, 12, 16, 24, ... and the longest."""
    sizes, size = {0, longest}, 1
    while size < longest:
        sizes |= {size, min(size + size // 2, longest)}
        size *= 2
    return sorted(sizes)


def between(taken: Mapping[int, TunePoint], *, ascending: bool) -> int | None:
    """The middle of the two neighbouring sizes whose scores are furthest apart; ``None`` if all
    sizes between are taken.
    """
    sizes = sorted(taken)
    pairs = [(a, b) for a, b in zip(sizes, sizes[1:], strict=False) if b - a > 1]
    if not pairs:
        return None

    def gap(pair: tuple[int, int]) -> float:
        low, high = (badness(taken[size].mean, ascending=ascending) for size in pair)
        if low == high:
            return 0.0
        return abs(low - high) if math.isfinite(low - high) else math.inf

    first, second = max(pairs, key=gap)
    return (first + second) // 2


def rank(
    gains: Mapping[Entry, float], cycles: Mapping[Entry, float | None]
) -> tuple[list[Entry], list[Entry]]:
    """The stubs that can be raised, by gain and by gain per cycle, largest first."""
    able = [entry for entry in gains if cycles[entry] is not None]
    least = min((c for entry in able if (c := cycles[entry] or 0.0) > 0), default=1.0)

    def per_cycle(entry: Entry) -> float:
        cost = max(cycles[entry] or 0.0, least)
        return gains[entry] / cost if gains[entry] > 0 else gains[entry]

    by_gain = sorted(able, key=lambda entry: gains[entry], reverse=True)
    return by_gain, sorted(by_gain, key=per_cycle, reverse=True)
