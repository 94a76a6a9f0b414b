"""Greedy search: raise int8 stubs to int16 in order of their gain, keep what helps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

from qtune.analysis.ablation import Port, ports
from qtune.analysis.observe import run_model
from qtune.analysis.sensitivity import GAIN, scores
from qtune.capture.inputs import Inputs
from qtune.dtype import qint8, qint16
from qtune.errors import AnalysisError
from qtune.profiler.metric import MetricInfo
from qtune.profiler.sensitivity_table import SensitivityTable


@dataclass(frozen=True, slots=True)
class TuneGoal:
    """When to stop: the metric reached ``threshold``, or ``max_tuned_stubs`` were raised."""

    metric: MetricInfo
    threshold: float
    max_tuned_stubs: int
    skip_prefix: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def reached(self, value: float) -> bool:
        """Whether ``value`` is good enough."""
        return value >= self.threshold if self.metric.ascending else value <= self.threshold

    def skips(self, name: str, kind: str) -> bool:
        """Whether a stub is left alone by the user's wish."""
        return any(
            name.startswith(prefix) and kind in kinds for prefix, kinds in self.skip_prefix.items()
        )


def tune(
    baseline: object, model: nn.Module, inputs: Inputs, table: SensitivityTable, goal: TuneGoal
) -> SensitivityTable:
    """The table with ``tuned_cumulative_<metric>``: a value where a stub was raised and helped.

    ``model`` (VALIDATION state) is changed stub by stub and restored at the end, dtype and scale,
    also after an error. ``baseline`` is what the model should give.
    """
    by_name = {(p.op.name, p.kind): p for p in ports(model)}
    cumulative: list[float | None] = [None] * len(table)
    tuned: list[Port] = []
    try:
        best = _score(baseline, model, inputs, table.output_name, goal)
        for index, row in enumerate(_ranked(table)):
            if goal.reached(best) or len(tuned) >= goal.max_tuned_stubs:
                break
            port = by_name.get((row["op_name"], row["fake_stub_type"]))
            if port is None or port.fake_quantize.dtype != qint8 or goal.skips(*_key(port)):
                continue
            port.fake_quantize.set_dtype(qint16)
            tuned.append(port)
            value = _score(baseline, model, inputs, table.output_name, goal)
            if goal.metric.badness(value) < goal.metric.badness(best):
                cumulative[index] = best = value
            else:
                tuned.pop().fake_quantize.set_dtype(qint8)
    finally:
        for port in tuned:
            port.fake_quantize.set_dtype(qint8)
    ranked = table.sort_by_column(f"{GAIN}_{table.metric}")
    return ranked.with_column(f"tuned_cumulative_{goal.metric.name}", cumulative)


def _key(port: Port) -> tuple[str, str]:
    return port.op.name, port.kind


def _ranked(table: SensitivityTable) -> list[dict[str, object]]:
    return table.sort_by_column(f"{GAIN}_{table.metric}").records()


def _score(
    baseline: object, model: nn.Module, inputs: Inputs, output: str, goal: TuneGoal
) -> float:
    with torch.no_grad():
        found = scores(goal.metric, baseline, run_model(model, inputs))
    if output not in found:
        raise AnalysisError(f"tune_bad_case: no output {output!r}; this model has {sorted(found)}")
    value = found[output]
    if value is None:
        raise AnalysisError(f"tune_bad_case: output {output!r} is empty on this bad case")
    return value
