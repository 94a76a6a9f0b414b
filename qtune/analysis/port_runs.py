"""The outputs of a model with one port quantized, for every port and variant, and their scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, fx

from qtune.analysis.ablation import OWN, AnyPort, CastPort, Port, in_own_state, switched_on, variant
from qtune.analysis.downstream import MAX_CACHE_BYTES, Baseline, same_bits
from qtune.analysis.outputs import PostProcess, Scores, scores
from qtune.analysis.plan import Plan
from qtune.analysis.port_changes import PortChanges
from qtune.capture.inputs import Inputs
from qtune.capture.structure import flatten, unflatten
from qtune.errors import GuardError
from qtune.nn.prepared import PreparedModel
from qtune.profiler.metric import MetricInfo
from qtune.profiler.undisturbed import same_randomness
from qtune.quantizers.scope import not_calibrated
from qtune.report.progress import progress_bar

PortScores = Mapping[str, Scores]
"""Variant -> output name -> score."""

OF_A_CAST = ("fp16", OWN)
"""The variants that a cast to float16 has; it knows no statistics for a scale."""

ROUNDING = 1e-3
"""How far outputs in channels_last may be from the model's own, of the largest value.

Sums in another order differ by about 1e-6 of it; what depends on the memory format by far more.
"""


class PortRuns:
    """Scores every port of a prepared model that computes in float now (``all_float``).

    ``outputs``: those of the model itself, without any quantization. A variant that changes no
    element is not run, nor one that gives the same values as another. ``runs`` counts the others.
    ``unchanged``: the scores of the baseline's outputs. ``max_cache_bytes``: see
    :class:`~qtune.analysis.downstream.Baseline`, which ``baseline`` is.
    """

    def __init__(
        self,
        model: PreparedModel,
        inputs: Inputs,
        metric: MetricInfo,
        outputs: Any,
        variants: Sequence[str],
        post_process: PostProcess | None = None,
        max_cache_bytes: int = MAX_CACHE_BYTES,
    ) -> None:
        self.model = model
        self.inputs = inputs
        self.metric = metric
        self.variants = tuple(variants)
        self.post_process = post_process
        self.runs = 0
        with same_randomness(model):
            self.baseline = self._baseline(outputs, max_cache_bytes)
        self._own = flatten(outputs)[0]
        self._leaves = self._own if self.baseline is None else list(self.baseline.outputs)
        self.unchanged = self._score(self._leaves)

    def scores(self, chosen: Sequence[AnyPort], shown: bool | None = None) -> dict[str, PortScores]:
        """Port name -> its scores. ``NotCalibratedError`` names ports that never saw data."""
        observed = [port for port in chosen if isinstance(port, Port)]
        unobserved = [p.name for p in observed if not bool(p.fake_quantize.observed)]
        if unobserved:
            raise not_calibrated(unobserved)
        found: dict[str, PortScores] = {}
        calls = self._calls()
        places: dict[fx.Node, list[AnyPort]] = {}
        for port in chosen:
            places.setdefault(calls[port.op.name][0], []).append(port)
        with progress_bar(len(chosen), "sensitivity", unit="stub", shown=shown) as moving:

            def visit(node: fx.Node) -> None:
                for port in places[node]:
                    found[port.name] = self._port(port, calls[port.op.name])
                    moving.advance(port.name)

            if self.baseline is not None:
                self.baseline.visit(list(places), visit)
            else:
                for node in places:
                    visit(node)
        return {port.name: found[port.name] for port in chosen}

    def _baseline(self, outputs: Any, limit: int) -> Baseline | None:
        """The run from which parts run again; ``None`` for a model that can't run in parts."""
        call = self.model.interface.inputs(self.inputs.args, self.inputs.kwargs)
        own = flatten(outputs)[0]
        if prefers_channels_last(self.model):
            try:
                found = Baseline(Plan(self.model, channels_last=True), call, limit)
            except (RuntimeError, GuardError):  # it asks for its own format: a view, is_contiguous
                found = None
            if found is not None and _agree(own, found.outputs):
                return found if found.resumable else None
        found = Baseline(Plan(self.model, channels_last=False), call, limit)
        return found if found.resumable else None

    def _calls(self) -> dict[str, list[fx.Node]]:
        """The calls of every operator, by its name."""
        calls: dict[str, list[fx.Node]] = {}
        for node, op in self.model.operators(aside=True):
            calls.setdefault(op.name, []).append(node)
        return calls

    def _port(self, port: AnyPort, calls: Sequence[fx.Node]) -> dict[str, Scores]:
        runs = _PortRuns(self, port, calls)
        missing: Scores = dict.fromkeys(self.unchanged)
        return {
            name: missing if isinstance(port, CastPort) and name not in OF_A_CAST else runs(name)
            for name in self.variants
        }

    def whole(self, switch: AbstractContextManager[None]) -> Scores:
        """The scores of a run of the whole model within ``switch``."""
        with switch, same_randomness(self.model):
            outputs = self.model(*self.inputs.args, **self.inputs.kwargs)
            return self.scores_of(flatten(outputs)[0])

    def scores_of(self, leaves: Sequence[Any] | None) -> Scores:
        """The scores of a result in parts; ``None``: of the baseline."""
        self.runs += 1
        return self.unchanged if leaves is None else self._score(leaves)

    def _score(self, leaves: Sequence[Any]) -> Scores:
        return scores(
            self.metric, self._result(self._leaves), self._result(leaves), self.post_process
        )

    def _result(self, leaves: Sequence[Any]) -> Any:
        """The result as the model gives it: copies, with the strides of its own."""
        copies = [_like(a, b) for a, b in zip(self._own, leaves, strict=True)]
        return unflatten(copies, self.model.out_spec)


class _PortRuns:
    """The variants of one port: each value is run once."""

    def __init__(self, runs: PortRuns, port: AnyPort, calls: Sequence[fx.Node]) -> None:
        self.runs = runs
        self.port = port
        self._known: list[tuple[Tensor, Scores]] = []
        self._changes: PortChanges | None = None
        self._value: Tensor | None = None
        if runs.baseline is not None:
            self._changes = PortChanges(runs.baseline.plan, port, calls)
            self._value = self._changes.value(runs.baseline)

    def __call__(self, name: str) -> Scores:
        """The scores of one variant."""
        baseline, changes = self.runs.baseline, self._changes
        if baseline is None or changes is None:
            return self.runs.whole(self._switch(name))
        if not changes.is_by_value(name):
            with changes.by_module(name) as calls:
                return self.runs.scores_of(baseline.changed(calls))
        transform = changes.transform(name)
        if self._value is None:
            return self.runs.scores_of(baseline.changed(changes.by_value(transform)))
        return self._once(transform(self._value), baseline, changes)

    def _once(self, value: Tensor, baseline: Baseline, changes: PortChanges) -> Scores:
        if same_bits(value, self._value):
            return self.runs.unchanged
        for other, known in self._known:
            if same_bits(value, other):
                return known
        result = self.runs.scores_of(baseline.changed(changes.by_value(lambda _: value)))
        self._known.append((value, result))
        return result

    def _switch(self, name: str) -> AbstractContextManager[None]:
        if name == OWN:
            return in_own_state(self.port)
        return switched_on(self.port, variant(self.port, name))


def prefers_channels_last(model: PreparedModel) -> bool:
    """Whether two-dimensional convolutions run faster in channels_last: on CPU."""
    weights = [p for p in model.parameters() if p.dim() == 4]
    return bool(weights) and all(p.device.type == "cpu" for p in weights)


def _agree(own: Sequence[Any], other: Sequence[Any]) -> bool:
    return len(own) == len(other) and all(map(_is_close, own, other))


def _is_close(a: Any, b: Any) -> bool:
    if not isinstance(a, Tensor) or not isinstance(b, Tensor):
        return type(a) is type(b)
    if (a.shape, a.dtype) != (b.shape, b.dtype):
        return False
    if not a.is_floating_point() or a.numel() == 0:
        return torch.equal(a, b)
    largest = float(a.nan_to_num(0.0, 0.0, 0.0).abs().max())
    return torch.allclose(a, b, rtol=0.0, atol=ROUNDING * largest, equal_nan=True)


def _like(own: Any, value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    if not isinstance(own, Tensor) or own.shape != value.shape:
        return value.clone()
    return torch.empty_like(own).copy_(value)
