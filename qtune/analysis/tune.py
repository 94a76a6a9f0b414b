"""Greedy search: raise int8 stubs to int16 in order of their gain, keep what helps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from qtune.analysis.ablation import Port, ports
from qtune.analysis.sensitivity import GAIN
from qtune.dtype import qint8, qint16
from qtune.errors import AnalysisError
from qtune.nn.prepared import PreparedModel
from qtune.profiler.metric import Metric, MetricInfo
from qtune.profiler.sensitivity_table import SensitivityTable
from qtune.report.progress import progress

CONFIG_KEYS = ("metric", "threshold", "max_tuned_stubs")


@dataclass(frozen=True, slots=True)
class TuneGoal:
    """When to stop: the metric reached ``threshold``, or ``max_tuned_stubs`` were raised."""

    metric: MetricInfo
    threshold: float
    max_tuned_stubs: int
    skip_prefix: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @classmethod
    def of(
        cls, config: Mapping[str, Any], skip_prefix: Mapping[str, Sequence[str]] | None = None
    ) -> TuneGoal:
        """The goal that a dict of ``outputs_config`` describes."""
        if set(config) != set(CONFIG_KEYS):
            raise AnalysisError(
                f"tune_bad_case: each output's config has the keys {', '.join(CONFIG_KEYS)}; got "
                f"{sorted(config)}"
            )
        return cls(
            Metric.get_metric(config["metric"]),
            float(config["threshold"]),
            int(config["max_tuned_stubs"]),
            skip_prefix or {},
        )

    def reached(self, value: float) -> bool:
        """Whether ``value`` is good enough."""
        return value >= self.threshold if self.metric.ascending else value <= self.threshold

    def skips(self, port: Port) -> bool:
        """Whether a stub is left alone by the user's wish."""
        return any(
            port.op.name.startswith(prefix) and port.kind in kinds
            for prefix, kinds in self.skip_prefix.items()
        )


def tune(
    model: PreparedModel,
    table: SensitivityTable,
    goal: TuneGoal,
    score: Callable[[], float],
) -> SensitivityTable:
    """The table with ``tuned_cumulative_<metric>``: a value where a stub was raised and helped.

    ``score()`` runs ``model`` as it is now and gives the goal's metric. The model is changed stub
    by stub and restored at the end, dtype and scale, also after an error.
    """
    by_name = {(p.op.name, p.kind): p for p in ports(model)}
    ranked = table.sort_by_column(f"{GAIN}_{table.metric}")
    cumulative: list[float | None] = [None] * len(table)
    with dtypes_restored(list(by_name.values())):
        best, tuned = score(), 0
        for index, row in enumerate(progress(ranked.records(), "tune", unit="stub")):
            if goal.reached(best) or tuned >= goal.max_tuned_stubs:
                break
            port = by_name.get((row["op_name"], row["fake_stub_type"]))
            if port is None or port.fake_quantize.dtype != qint8 or goal.skips(port):
                continue
            value = _raised(port, goal, score, best)
            if value is not None:
                cumulative[index] = best = value
                tuned += 1
    return ranked.with_column(f"tuned_cumulative_{goal.metric.name}", cumulative)


def _raised(port: Port, goal: TuneGoal, score: Callable[[], float], best: float) -> float | None:
    """The score with the stub at int16 if that is better than ``best``; else the stub goes back."""
    before = port.fake_quantize.scale.clone()
    port.fake_quantize.set_dtype(qint16)
    value = score()
    if goal.metric.badness(value) < goal.metric.badness(best):
        return value
    _set_back(port, qint8, before)
    return None


@contextmanager
def dtypes_restored(chosen: Sequence[Port]) -> Iterator[None]:
    """Give every stub its dtype and, bit for bit, its scale back."""
    before = [(port, port.fake_quantize.dtype, port.fake_quantize.scale.clone()) for port in chosen]
    try:
        yield
    finally:
        for port, dtype, scale in before:
            if port.fake_quantize.dtype != dtype:
                _set_back(port, dtype, scale)


def _set_back(port: Port, dtype: Any, scale: torch.Tensor) -> None:
    port.fake_quantize.set_dtype(dtype)
    with torch.no_grad():
        port.fake_quantize.scale.copy_(scale)
