"""Bad cases: the inputs on which two models differ most, per output and metric."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from qtune.analysis.observe import Model, run_model
from qtune.analysis.sensitivity import scores
from qtune.capture.inputs import Inputs, as_inputs
from qtune.errors import AnalysisError
from qtune.profiler.bad_case_report import BadCaseReport
from qtune.profiler.metric import MetricInfo
from qtune.report.files import write_with

PERCENTILES = (50.0, 90.0, 99.0, 99.9, 99.99)


@dataclass(slots=True)
class _Kept:
    """The topk worst cases of one output and metric, as a heap of (badness, -index, value)."""

    metric: MetricInfo
    topk: int
    heap: list[tuple[float, int, float]]

    def offer(self, index: int, value: float) -> None:
        heapq.heappush(self.heap, (self.metric.badness(value), -index, value))
        if len(self.heap) > self.topk:
            heapq.heappop(self.heap)

    def cases(self) -> list[tuple[int, float]]:
        return [(-index, value) for _, index, value in sorted(self.heap, reverse=True)]

    def indices(self) -> set[int]:
        return {-index for _, index, _ in self.heap}


class BadCaseSearch:
    """Runs both models over data and keeps the worst cases and their inputs in ``folder``."""

    def __init__(self, metrics: Sequence[MetricInfo], topk: int, folder: Path, dump: bool) -> None:
        if topk < 1:
            raise AnalysisError(f"auto_find_bad_case: topk must be at least 1, got {topk}")
        self.metrics = metrics
        self.topk = topk
        self.folder = folder
        self.dump = dump
        self._kept: dict[tuple[str, str], _Kept] = {}
        self._values: dict[str, dict[str, list[float]]] = {}
        self._inputs: dict[int, Inputs] = {}

    def run(
        self, baseline: Model, analysed: Model, data: Iterable[Any], num_steps: int
    ) -> BadCaseReport:
        """Search ``num_steps`` items of ``data`` (consumed once)."""
        for index, inputs in tqdm(_limited(data, num_steps), desc="bad cases", unit="case"):
            self._offer(index, run_model(baseline, inputs), run_model(analysed, inputs))
            self._keep_inputs(index, inputs)
        if not self._kept:
            raise AnalysisError(
                "auto_find_bad_case: the data gave no case with a float output to compare"
            )
        for index, inputs in self._inputs.items():
            save_case(self.folder, index, inputs)
        info: dict[str, dict[str, list[tuple[int, float]]]] = {}
        for (output, metric), kept in self._kept.items():
            info.setdefault(output, {})[metric] = kept.cases()
        return BadCaseReport(info, self._values, {m.name: m.ascending for m in self.metrics})

    def _offer(self, index: int, baseline: Any, outputs: Any) -> None:
        for metric in self.metrics:
            for output, value in scores(metric, baseline, outputs).items():
                if value is None:
                    continue
                key = (output, metric.name)
                self._kept.setdefault(key, _Kept(metric, self.topk, [])).offer(index, value)
                self._values.setdefault(output, {}).setdefault(metric.name, []).append(value)

    def _keep_inputs(self, index: int, inputs: Inputs) -> None:
        wanted = set().union(*(kept.indices() for kept in self._kept.values()))
        if self.dump:
            if index in wanted:
                save_case(self.folder, index, inputs)
            for path in self.folder.glob("*.pt"):
                if int(path.stem) not in wanted:
                    path.unlink()
            return
        self._inputs[index] = inputs
        self._inputs = {i: kept for i, kept in self._inputs.items() if i in wanted}


def _limited(data: Iterable[Any], num_steps: int) -> Iterator[tuple[int, Inputs]]:
    for index, item in enumerate(data):
        if index >= num_steps:
            return
        yield index, as_inputs(item)


def save_case(folder: Path, index: int, inputs: Inputs) -> None:
    """Write the inputs of a case as plain containers, so that they load with the safe default."""
    content = {"args": inputs.args, "kwargs": dict(inputs.kwargs)}
    write_with(folder / f"{index}.pt", lambda path: torch.save(content, path))


def load_case(folder: Path, index: int) -> Inputs:
    """Read the inputs of a case."""
    path = folder / f"{index}.pt"
    if not path.exists():
        raise AnalysisError(f"{path} is missing; search or set the bad case again")
    content: Mapping[str, Any] = torch.load(path, weights_only=True)
    return Inputs(*content["args"], **content["kwargs"])
