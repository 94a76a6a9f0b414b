"""The search for bad cases: the inputs on which two models differ most, per output and metric.

Several processes search their share of the data each; the report is made of what all found.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from qtune.analysis.cases import Case, CaseStore
from qtune.analysis.outputs import OutputPair, PostProcess, Scores
from qtune.errors import AnalysisError
from qtune.profiler.bad_case_report import BadCaseReport
from qtune.profiler.metric import MetricInfo
from qtune.report.progress import progress

RunBoth = Callable[[Case], tuple[Any, Any]]
"""Outputs of the baseline and of the analysed model."""
_Key = TypeVar("_Key")
Found = list[tuple[int, float | None]]
"""(index of a case, value) of every case that was searched."""


@dataclass(frozen=True, slots=True)
class Findings:
    """What one process found. ``values``: by output and metric; ``exact``: share of equal elements
    of the integer outputs, by output.
    """

    values: dict[tuple[str, str], Found] = field(default_factory=dict)
    exact: dict[str, Found] = field(default_factory=dict)


@dataclass(slots=True)
class _Kept:
    """The topk worst cases of one output and metric, as a heap of (badness, -index, value)."""

    metric: MetricInfo
    topk: int
    heap: list[tuple[float, int, float]] = field(default_factory=list)

    def offer(self, index: int, value: float | None) -> None:
        if value is None:
            return
        heapq.heappush(self.heap, (self.metric.badness(value), -index, value))
        if len(self.heap) > self.topk:
            heapq.heappop(self.heap)

    def cases(self) -> list[tuple[int, float]]:
        return [(-index, value) for _, index, value in sorted(self.heap, reverse=True)]

    def indices(self) -> set[int]:
        return {-index for _, index, _ in self.heap}


class BadCaseSearch:
    """Runs both models over data; keeps the worst cases and leaves their inputs in ``store``."""

    def __init__(
        self,
        metrics: Sequence[MetricInfo],
        topk: int,
        store: CaseStore,
        post_process: PostProcess | None = None,
    ) -> None:
        if topk < 1:
            raise AnalysisError(f"auto_find_bad_case: topk must be at least 1, got {topk}")
        self.metrics = metrics
        self.topk = topk
        self.store = store
        self.post_process = post_process
        self._kept: dict[tuple[str, str], _Kept] = {}
        self._found = Findings()

    def run(
        self,
        run_both: RunBoth,
        cases: Iterable[Case],
        num_steps: int,
        total: int | None = None,
    ) -> Findings:
        """Search ``num_steps`` of the ``cases``, which are consumed once.

        ``total``: how many there are, where the caller knows (for the bar).
        """
        items = itertools.islice(cases, num_steps)
        for case in progress(items, "bad cases", unit="case", total=total):
            self._offer(case.index, OutputPair(*run_both(case), self.post_process))
            self.store.keep(case, self._wanted())
        self.store.flush()
        return self._found

    def _offer(self, index: int, outputs: OutputPair) -> None:
        found = outputs.all_scores(self.metrics)
        for metric in self.metrics:
            self._note(index, metric, found[metric.name])
        for output, share in outputs.exact_match().items():
            self._found.exact.setdefault(output, []).append((index, share))

    def _note(self, index: int, metric: MetricInfo, found: Scores) -> None:
        for output, value in found.items():
            key = (output, metric.name)
            self._kept.setdefault(key, _Kept(metric, self.topk)).offer(index, value)
            self._found.values.setdefault(key, []).append((index, value))

    def _wanted(self) -> set[int]:
        return set().union(*(kept.indices() for kept in self._kept.values()))


def report_of(
    metrics: Sequence[MetricInfo], topk: int, found: Sequence[Findings], device: str
) -> BadCaseReport:
    """The report on all cases that one or several processes searched. ``device``: where."""
    by_name = {metric.name: metric for metric in metrics}
    merged, exact = _merged(f.values for f in found), _merged(f.exact for f in found)
    count = 1 + max((i for f in (*merged.values(), *exact.values()) for i, _ in f), default=-1)
    info: dict[str, dict[str, list[tuple[int, float]]]] = {}
    values: dict[str, dict[str, list[float | None]]] = {}
    for (output, name), seen in merged.items():
        kept = _Kept(by_name[name], topk)
        for index, value in seen:
            kept.offer(index, value)
        info.setdefault(output, {})[name] = kept.cases()
        values.setdefault(output, {})[name] = _by_index(seen, count)
    if not any(cases for metrics_of in info.values() for cases in metrics_of.values()):
        raise AnalysisError(
            "auto_find_bad_case: the data gave no case with a float output to compare; check "
            "the data, and register a metric of scope 'all' for other outputs"
        )
    ascending = {metric.name: metric.ascending for metric in metrics}
    shares = {output: _by_index(seen, count) for output, seen in exact.items()}
    return BadCaseReport(info, values, ascending, shares, device)


def _merged(parts: Iterable[dict[_Key, Found]]) -> dict[_Key, Found]:
    merged: dict[_Key, Found] = {}
    for part in parts:
        for key, seen in part.items():
            merged.setdefault(key, []).extend(seen)
    return {key: sorted(seen, key=lambda pair: pair[0]) for key, seen in merged.items()}


def _by_index(seen: Found, count: int) -> list[float | None]:
    """The values in the order of the cases, ``None`` where a case had no such output."""
    values = dict(seen)
    return [values.get(index) for index in range(count)]
