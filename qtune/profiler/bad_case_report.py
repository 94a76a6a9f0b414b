"""``BadCaseReport``: the inputs on which two models differ most, per output and metric."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from qtune.errors import AnalysisError
from qtune.profiler.metric import MetricInfo
from qtune.report.table import text_table

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class BadCaseReport:
    """What a search found.

    ``output_to_badcase_info``: output name -> metric name -> [(index, value), ...], worst first.
    ``values``: output name -> metric name -> value of every case in order, ``None`` where the
    output was empty. ``ascending``: metric name -> whether larger is better. ``exact_match``: name
    of an integer or bool output -> share of its elements that are equal in both models, of every
    case; such outputs have no distance, so they rank nothing. ``device``: where the models ran.
    """

    output_to_badcase_info: dict[str, dict[str, list[tuple[int, float]]]]
    values: dict[str, dict[str, list[float | None]]]
    ascending: dict[str, bool]
    exact_match: dict[str, list[float | None]] = field(default_factory=dict)
    device: str = ""

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
            raise AnalysisError(
                f"no output {output!r} in the report; it has {listed(self.output_names)}"
            )
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
                "Pass metric= one of these, or add it to metric_list and search again"
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

    def exact_statistics(self) -> list[dict[str, Any]]:
        """Mean and smallest share of equal elements per integer output, and the case of it."""
        rows = []
        for output, shares in self.exact_match.items():
            known = {i: share for i, share in enumerate(shares) if share is not None}
            worst = min(known, key=lambda i: (known[i], i), default=None)
            rows.append(
                {
                    "output": output,
                    "cases": len(known),
                    "mean exact match": _mean(list(known.values())),
                    "worst exact match": None if worst is None else known[worst],
                    "worst index": worst,
                }
            )
        return rows

    def to_dict(self) -> dict[str, Any]:
        """Plain containers."""
        return asdict(self)

    def to_pandas(self) -> pd.DataFrame:
        """One row per kept case: output, metric, rank, index, value."""
        import pandas as pd

        columns = ["output", "metric", "rank", "index", "value"]
        return pd.DataFrame(self.rows(), columns=columns)

    def rows(self) -> list[dict[str, Any]]:
        """The kept cases, worst first: output, metric, rank (from 1), index, value."""
        return [
            {"output": output, "metric": metric, "rank": rank, "index": index, "value": value}
            for output, metrics in self.output_to_badcase_info.items()
            for metric, cases in metrics.items()
            for rank, (index, value) in enumerate(cases, 1)
        ]

    def __bool__(self) -> bool:
        """Whether there is a case."""
        return bool(self.indices)

    def __str__(self) -> str:
        return text_table(self.rows(), ("output", "metric", "rank", "index", "value"))

    def _worst(self, metric: str, values: Sequence[float]) -> float | None:
        if any(math.isnan(value) for value in values):
            return math.nan
        return (min if self.ascending[metric] else max)(values, default=None)


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values and all(map(math.isfinite, values)) else None


def listed(outputs: Iterable[str]) -> str:
    """Names of outputs for a message, which explains the empty one."""
    names = list(outputs)
    meaning = " ('' is the tensor of a model that returns a single one)" if "" in names else ""
    return f"{names}{meaning}"
