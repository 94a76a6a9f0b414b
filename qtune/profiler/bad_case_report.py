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
    ``values``: output name -> metric name -> value of every case in order, ``None`` where the
    output was empty. ``ascending``: metric name -> whether larger is better.
    """

    output_to_badcase_info: dict[str, dict[str, list[tuple[int, float]]]]
    values: dict[str, dict[str, list[float | None]]]
    ascending: dict[str, bool]

    @property
    def output_names(self) -> list[str]:
        """The names of the outputs."""
        return list(self.output_to_badcase_info)

    @property
    def indices(self) -> list[int]:
        """All cases in the report."""
        return sorted({index for name in self.output_names for index in self.indices_of(name)})

    def indices_of(self, output: str) -> list[int]:
        """Cases kept for one output under any metric."""
        metrics = self.output_to_badcase_info[output].values()
        return sorted({index for cases in metrics for index, _ in cases})

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
            for name, all_values in metrics.items():
                values = [value for value in all_values if value is not None]
                kept = [value for _, value in self.output_to_badcase_info[output][name]]
                rows.append(
                    {
                        "output": output,
                        "metric": name,
                        "cases": len(values),
                        "mean": _mean(values),
                        "worst": self._worst(name, values),
                        "mean of topk": _mean(kept),
                        "worst of topk": self._worst(name, kept),
                    }
                )
        return rows

    def _worst(self, metric: str, values: Sequence[float]) -> float | None:
        if any(math.isnan(value) for value in values):
            return math.nan
        return (min if self.ascending[metric] else max)(values, default=None)


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values and all(map(math.isfinite, values)) else None
