"""The search for bad cases: the inputs on which two models differ most, per output and metric."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from qtune.analysis.cases import Case, CaseStore
from qtune.analysis.outputs import OutputPair, PostProcess, Scores
from qtune.errors import AnalysisError
from qtune.profiler.bad_case_report import BadCaseReport
from qtune.profiler.metric import MetricInfo
from qtune.report.progress import progress

RunBoth = Callable[[Case], tuple[Any, Any]]
"""Outputs of the baseline and of the analysed model."""


@dataclass(slots=True)
class _Kept:
    """The topk worst cases of one output and metric, as a heap of (badness, -index, value)."""

    metric: MetricInfo
    topk: int
    heap: list[tuple[float, int, float]] = field(default_factory=list)
    values: list[float | None] = field(default_factory=list)

    def offer(self, index: int, value: float | None) -> None:
        self.values.append(value)
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
        self._exact: dict[str, list[float | None]] = {}

    def run(
        self,
        run_both: RunBoth,
        cases: Iterable[Case],
        num_steps: int,
        total: int | None = None,
        device: str = "",
    ) -> BadCaseReport:
        """Search ``num_steps`` of the ``cases``, which are consumed once.

        ``total``: how many there are, where the caller knows (for the bar). ``device``: for the
        report.
        """
        items = itertools.islice(cases, num_steps)
        for case in progress(items, "bad cases", unit="case", total=total):
            self._offer(case.index, OutputPair(*run_both(case), self.post_process))
            self.store.keep(case, self._wanted())
        if not self._wanted():
            raise AnalysisError(
                "auto_find_bad_case: the data gave no case with a float output to compare; check "
                "the data, and register a metric of scope 'all' for other outputs"
            )
        self.store.flush()
        info: dict[str, dict[str, list[tuple[int, float]]]] = {}
        values: dict[str, dict[str, list[float | None]]] = {}
        for (output, metric), kept in self._kept.items():
            info.setdefault(output, {})[metric] = kept.cases()
            values.setdefault(output, {})[metric] = kept.values
        ascending = {m.name: m.ascending for m in self.metrics}
        return BadCaseReport(info, values, ascending, self._exact, device)

    def _offer(self, index: int, outputs: OutputPair) -> None:
        for metric in self.metrics:
            self._note(index, metric, outputs.scores(metric))
        for output, share in outputs.exact_match().items():
            self._exact.setdefault(output, []).append(share)

    def _note(self, index: int, metric: MetricInfo, found: Scores) -> None:
        for output, value in found.items():
            key = (output, metric.name)
            self._kept.setdefault(key, _Kept(metric, self.topk)).offer(index, value)

    def _wanted(self) -> set[int]:
        return set().union(*(kept.indices() for kept in self._kept.values()))
