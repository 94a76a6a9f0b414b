"""``kind = "baseline"``: numbers of the model against those of its stored baseline."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

from qtune.errors import ArgumentError
from qtune.profiler.metric import Metric
from qtune.profiler.observe import Model
from qtune.testing import accuracy
from qtune.testing import baseline_identity as about
from qtune.testing.accuracy import assert_accuracy_drop_below
from qtune.testing.arguments import Onnx
from qtune.testing.baseline import Baseline
from qtune.testing.consistency import assert_consistency
from qtune.testing.content import digest
from qtune.testing.limits import METRICS
from qtune.testing.origin import origin_of
from qtune.testing.record import carrying_on, conclude_all, kept_apart
from qtune.testing.result import AssertionResult

_DIGITS = 12
_ARGUMENT = {argument.partition("_")[2]: argument for argument in METRICS}
"""Name of a metric of the outputs -> argument of ``assert_consistency``."""


def check_baseline(
    baseline: Model | Onnx,
    other: Model | Onnx,
    *,
    inputs: Any,
    metrics: Sequence[str],
    max_drop: float | Mapping[str, float] = 0.0,
    evaluate: Callable[[Any], float] | None = None,
    stored: Baseline,
) -> None:
    """Compare numbers of ``other`` with their stored values, each in its own unit.

    ``metrics``: cosine, sqnr_db, atol, l1 (the worst output of ``other`` against that of
    ``baseline``), or the name of ``evaluate``. ``max_drop``: how much worse each may be, or a table
    by metric; of atol and l1, where smaller is better, how much larger. Results are left in the
    record, also those of metrics behind a failing one.
    """
    values = _values(baseline, other, inputs, metrics, evaluate)
    allowed = _allowed(metrics, max_drop)
    identity = _identity(other, inputs)
    with kept_apart() as found:
        for name, value in values.items():
            smaller_is_better = name in _ARGUMENT and not _metric(name).ascending
            bound: Any = {"max_rise" if smaller_is_better else "max_drop": allowed[name]}
            with carrying_on():
                stored.check(
                    name,
                    value,
                    **bound,
                    higher_is_better=not smaller_is_better,
                    identity=identity,
                )
        stored.finish()
    with carrying_on():
        conclude_all([_about(other, result) for result in found])


def _about(other: Any, result: AssertionResult) -> AssertionResult:
    """With all that is known about the model: its identity is a part of that."""
    known = about.origin_about(other, None, origin_of(other).model)
    facts = {**known.provenance, **result.provenance}
    return replace(result, model=known.model, artefact=known.artefact, provenance=facts)


def output_metrics(baseline: Any, other: Any, inputs: Any, names: Sequence[str]) -> Any:
    """Metrics of the worst output by name; ``None`` where there is nothing to compare."""
    loosest: Any = {
        _ARGUMENT[name]: -math.inf if _metric(name).ascending else math.inf for name in names
    }
    with kept_apart() as found:  # NaN is within no limit
        assert_consistency(baseline, other, inputs=inputs, **loosest)
    return found[0].metrics


def task_metric(model: Any, evaluate: Any, name: str) -> float | None:
    """What ``evaluate`` gives for the model, which it may call with any batch size."""
    with kept_apart() as found:
        assert_accuracy_drop_below(
            0.0, model, evaluate, max_drop=math.inf, metric=name, unit=accuracy.OWN
        )
    return found[0].metrics[name]


def _metric(name: str) -> Any:
    return Metric.get_metric(METRICS[_ARGUMENT[name]])


def _values(
    baseline: Any,
    other: Any,
    inputs: Any,
    metrics: Sequence[str],
    evaluate: Callable[[Any], float] | None,
) -> dict[str, Any]:
    own = "" if evaluate is None else evaluate.__name__
    known = [*_ARGUMENT, *([own] if own else [])]
    if not metrics:
        raise ArgumentError(f"metrics is empty; choose from {', '.join(known)}")
    for name in metrics:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"; close matches: {near[0]}" if near else ""
            more = (
                "" if own else ', or the name of the function that evaluate = "module:name" gives'
            )
            raise ArgumentError(
                f"metrics: unknown {name!r}{hint}; choose from {', '.join(known)}{more}"
            )
    of_outputs = [name for name in metrics if name in _ARGUMENT]
    found = output_metrics(baseline, other, inputs, of_outputs) if of_outputs else {}
    return {
        name: found[name] if name in found else task_metric(other, evaluate, name)
        for name in dict.fromkeys(metrics)
    }


def _allowed(metrics: Sequence[str], max_drop: float | Mapping[str, float]) -> dict[str, float]:
    if not isinstance(max_drop, Mapping):
        return dict.fromkeys(metrics, float(max_drop))
    unknown = [name for name in max_drop if name not in metrics]
    if unknown:
        raise ArgumentError(
            f"max_drop: {unknown[0]!r} is not one of the metrics {', '.join(metrics)}"
        )
    return {name: float(max_drop.get(name, 0.0)) for name in metrics}


def _identity(other: Any, inputs: Any) -> dict[str, Any]:
    """What the values are about, and what they were measured with."""
    facts = origin_of(other).provenance
    environment = {name: facts[name] for name in about.ENVIRONMENT if name in facts}
    return {**environment, **about.identity_of(facts), "inputs": digest(inputs)[:_DIGITS]}
