"""``BadCaseReport``: the inputs on which two models differ most, per output and metric."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from qtune.errors import AnalysisError
from qtune.profiler.metric import MetricInfo


@dataclass(frozen=True, slots=True)
class BadCaseReport:
    """What a search found.

    ``output_to_badcase_info``: output name -> metric name -> [(index, value), ...], worst first.
    ``values``: output name -> metric name -> value of every case in order. ``ascending``: metric
    name -> whether larger is better.
    """

    output_to_badcase_info: dict[str, dict[str, list[tuple[int, float]]]]
    values: dict[str, dict[str, list[float]]]
    ascending: dict[str, bool]

    @property
    def output_names(self) -> list[str]:
        """The names of the outputs."""
        return list(self.output_to_badcase_info)

    @property
    def indices(self) -> list[int]:
        """All cases in the report."""
        return sorted(
            {
                index
                for metrics in self.output_to_badcase_info.values()
                for cases in metrics.values()
                for index, _ in cases
            }
        )

    def worst(self, metric: MetricInfo, output: str | None = None) -> int:
        """Index of the worst case under ``metric``, over all outputs or on one."""
        if output is not None and output not in self.output_to_badcase_info:
            raise AnalysisError(f"no output {output!r} in the report; it has {self.output_names}")
        names = self.output_names if output is None else [output]
        cases = [
            case
            for name in names
            for case in self.output_to_badcase_info[name].get(metric.name, [])
        ]
        if not cases:
            known = sorted(self.ascending)
            raise AnalysisError(
                f"the bad case report has no metric {metric.name}; it was searched with {known}. "
                "Add it to metric_list and search again"
            )
        return max(cases, key=lambda case: (metric.badness(case[1]), -case[0]))[0]

    def cases_of(self, output: str, metric: MetricInfo) -> list[int]:
        """Indices kept for one output and metric, worst first."""
        return [index for index, _ in self.output_to_badcase_info[output].get(metric.name, [])]

    def statistics(self) -> list[dict[str, Any]]:
        """Mean and worst over all cases and over the kept ones, per output and metric."""
        rows = []
        for output, metrics in self.values.items():
            for name, values in metrics.items():
                kept = [value for _, value in self.output_to_badcase_info[output][name]]
                pick = min if self.ascending[name] else max
                rows.append(
                    {
                        "output": output,
                        "metric": name,
                        "cases": len(values),
                        "mean": _mean(values),
                        "worst": pick(values, default=None),
                        "mean of topk": _mean(kept),
                        "worst of topk": pick(kept, default=None),
                    }
                )
        return rows


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values and all(map(math.isfinite, values)) else None
