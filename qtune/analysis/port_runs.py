"""The outputs of a model with one port quantized, for every port and variant, and their scores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from qtune.analysis.ablation import (
    OWN,
    Port,
    Recording,
    in_own_state,
    recorded,
    switched_on,
    variant,
)
from qtune.analysis.downstream import Resume, can_resume, sweep
from qtune.analysis.outputs import PostProcess, Scores, scores
from qtune.capture.inputs import Inputs
from qtune.nn.prepared import PreparedModel
from qtune.profiler.metric import MetricInfo
from qtune.profiler.observe import operator_name
from qtune.profiler.undisturbed import same_randomness
from qtune.quantizers.scope import not_calibrated
from qtune.report.progress import progress_bar

PortScores = Mapping[str, Scores]
"""Variant -> output name -> score."""


class PortRuns:
    """Scores every port of a prepared model that computes in float now (``all_float``).

    ``baseline``: its outputs without any quantization. A variant that changes no element is not
    run, nor one that gives the same values as another.
    """

    def __init__(
        self,
        model: PreparedModel,
        inputs: Inputs,
        metric: MetricInfo,
        baseline: Any,
        variants: Sequence[str],
        post_process: PostProcess | None = None,
    ) -> None:
        self.model = model
        self.inputs = inputs
        self.metric = metric
        self.baseline = baseline
        self.variants = tuple(variants)
        self.post_process = post_process
        self.runs = 0
        self._calls = Counter(map(operator_name, model.graph.nodes))
        self._unchanged: Scores | None = None

    def scores(self, chosen: Sequence[Port], shown: bool | None = None) -> dict[str, PortScores]:
        """Port name -> its scores. ``NotCalibratedError`` names ports that never saw data."""
        unobserved = [p.name for p in chosen if not bool(p.fake_quantize.observed)]
        if unobserved:
            raise not_calibrated(unobserved)
        with same_randomness():
            resumable = can_resume(self.model, self.inputs)
        places = self._places(chosen)
        found: dict[str, PortScores] = {}
        bar = progress_bar(len(chosen), "sensitivity", unit="stub", shown=shown)
        with bar as moving, recorded(chosen) as recording:

            def visit(node: fx.Node, resume: Resume) -> None:
                recording.paused = True
                for port in places[node]:
                    found[port.name] = self._port(port, recording, resume)
                    moving.advance(port.name)
                recording.clear()
                recording.paused = False

            if resumable:
                sweep(self.model, self.inputs, set(places), visit)
            else:
                for node in places:
                    visit(node, self._whole)
        return {port.name: found[port.name] for port in chosen}

    def _places(self, chosen: Sequence[Port]) -> dict[fx.Node, list[Port]]:
        """The first call of every port's operator."""
        first: dict[str, fx.Node] = {}
        for node in self.model.graph.nodes:
            first.setdefault(operator_name(node), node)
        places: dict[fx.Node, list[Port]] = {}
        for port in chosen:
            places.setdefault(first[port.op.name], []).append(port)
        return places

    def _whole(self) -> Any:
        with same_randomness():
            return self.model(*self.inputs.args, **self.inputs.kwargs)

    def _port(self, port: Port, recording: Recording, resume: Resume) -> dict[str, Scores]:
        seen = recording.values.get(port.name, [])
        value = seen[0] if self._calls[port.op.name] == 1 and len(seen) == 1 else None
        results: list[tuple[Tensor, Scores]] = []
        found: dict[str, Scores] = {}
        for name in self.variants:
            if name == OWN:
                with in_own_state(port):
                    found[name] = self._run(resume)
            elif value is None:
                with switched_on(port, variant(port, name)):
                    found[name] = self._run(resume)
            else:
                found[name] = self._once(port, name, value, results, resume)
        return found

    def _once(
        self,
        port: Port,
        name: str,
        value: Tensor,
        results: list[tuple[Tensor, Scores]],
        resume: Resume,
    ) -> Scores:
        """The scores for a value that is known before: equal values are run once."""
        changed = variant(port, name)(value)
        if torch.equal(changed, value):
            return self._scores_unchanged()
        for other, known in results:
            if torch.equal(changed, other):
                return known
        with switched_on(port, lambda x: changed):
            result = self._run(resume)
        results.append((changed, result))
        return result

    def _run(self, resume: Resume) -> Scores:
        self.runs += 1
        return scores(self.metric, self.baseline, resume(), self.post_process)

    def _scores_unchanged(self) -> Scores:
        if self._unchanged is None:
            self._unchanged = scores(self.metric, self.baseline, self.baseline, self.post_process)
        return self._unchanged
