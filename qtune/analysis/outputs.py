"""The outputs of two models side by side: names, pairs, and one number per output."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from qtune.capture.structure import flatten_named
from qtune.errors import AnalysisError
from qtune.profiler.metric import MetricInfo
from qtune.profiler.pair_sums import PairSums, distance, sums_for, sums_of
from qtune.profiler.record import duplicated

Scores = dict[str, float | None]
PostProcess = Callable[[Any], Any]

SHARED_FROM = 16384
"""Values of an output from which its metrics share a pass; below, one costs as much as a metric."""

ALL = "all"
"""Name of the output of a metric of scope all."""
ONLY = "the output"
"""How pages call an output without a name: a model's only one."""


def named(output: str) -> str:
    """How a page calls an output."""
    return f"output {output}" if output else ONLY


def scores(
    metric: MetricInfo, baseline: Any, outputs: Any, post_process: PostProcess | None = None
) -> Scores:
    """``metric`` per output name; ``all`` for a metric of scope all.

    Integer and bool outputs have no distance and are left out; an empty one gives ``None`` (n/a).
    ``post_process`` is applied to both sides first.
    """
    return OutputPair(baseline, outputs, post_process).scores(metric)


class OutputPair:
    """The outputs of two models on one input, behind ``post_process``."""

    def __init__(
        self, baseline: Any, outputs: Any, post_process: PostProcess | None = None
    ) -> None:
        self._sides = (processed(baseline, post_process), processed(outputs, post_process))
        self._pairs: list[tuple[str, Tensor, Tensor]] | None = None

    def scores(self, metric: MetricInfo) -> Scores:
        """See :func:`scores`."""
        if metric.scope == ALL:
            return {ALL: metric(*self._sides)}
        return {name: metric(a, b) for name, a, b in self._tensors() if _has_distance(a)}

    def all_scores(self, metrics: Sequence[MetricInfo]) -> dict[str, Scores]:
        """Metric name -> scores; those of large outputs share one pass over the values."""
        found: dict[str, Scores] = {m.name: self.scores(m) for m in metrics if m.scope == ALL}
        single = [m for m in metrics if m.scope != ALL]
        found |= {m.name: {} for m in single}
        for name, a, b in self._tensors() if single else []:
            if _has_distance(a):
                sums = _shared(a, b, single) if len(single) > 1 else None
                for metric in single:
                    found[metric.name][name] = distance(metric, a, b, sums)
        return {m.name: found[m.name] for m in metrics}

    def exact_match(self) -> Scores:
        """Share of equal elements of each integer or bool output; ``None`` for an empty one.

        ``{}`` where the two sides can't be paired (metrics of scope all take any structure).
        """
        try:
            found = [(n, a, b) for n, a, b in self._tensors() if not _has_distance(a)]
        except AnalysisError:
            return {}
        return {name: _equal_share(a, b) for name, a, b in found}

    def _tensors(self) -> list[tuple[str, Tensor, Tensor]]:
        if self._pairs is None:
            self._pairs = [(name, a, b.to(a.device)) for name, a, b in pairs(*self._sides)]
        return self._pairs


def processed(outputs: Any, post_process: PostProcess | None) -> Any:
    """The outputs behind ``post_process``, which gets a copy: it may work in place."""
    return outputs if post_process is None else post_process(duplicated(outputs))


def _shared(a: Tensor, b: Tensor, metrics: Sequence[MetricInfo]) -> PairSums | None:
    """The sums of two large finite real tensors."""
    return None if a.numel() < SHARED_FROM else sums_of(a, b, sums_for(metrics))


def _has_distance(value: Tensor) -> bool:
    return value.is_floating_point() or value.is_complex()


def _equal_share(a: Tensor, b: Tensor) -> float | None:
    if a.numel() == 0 and b.numel() == 0:
        return None
    return float((a == b).double().mean()) if a.shape == b.shape else 0.0


def pairs(baseline: Any, outputs: Any) -> list[tuple[str, Tensor, Tensor]]:
    """(name, baseline, other) of all output tensors.

    The names are the baseline's; another container with as many tensors is taken in its order (an
    HBIR module exported without containers gives a list).
    """
    left = [(name, leaf) for name, leaf in flatten_named(baseline) if isinstance(leaf, Tensor)]
    right = [(name, leaf) for name, leaf in flatten_named(outputs) if isinstance(leaf, Tensor)]
    by_name = dict(right)
    if set(by_name) == {name for name, _ in left}:
        return [(name, leaf, by_name[name]) for name, leaf in left]
    if len(left) != len(right):
        raise AnalysisError(
            f"the two models give different outputs, {[n for n, _ in left]} and "
            f"{[n for n, _ in right]}; make them equal with post_process"
        )
    return [(name, a, b) for (name, a), (_, b) in zip(left, right, strict=True)]
