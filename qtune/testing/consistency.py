"""``assert_consistency``: two stages of one model compute the same, as far as a limit allows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from qtune.analysis.observe import Model, OpRecord
from qtune.analysis.own_error import OwnError, own_errors
from qtune.errors import ArgumentError
from qtune.hbir.feeding import bind_call
from qtune.hbir.module import HbirModule
from qtune.profiler.metric import Metric, MetricInfo
from qtune.testing.record import conclude_all
from qtune.testing.result import AssertionResult, LayerResult
from qtune.testing.running import Chunk, chunks, march_of, model_name, observations, outputs_of

ADVICE = (
    "Look at the first bad layer: its range, its scale, and whether calibration saw such data; "
    "raise it to qint16 or give it a fixed scale."
)


@dataclass(frozen=True, slots=True)
class Limit:
    """A bound on a metric: ``min_cosine=0.99`` is COSINE >= 0.99."""

    key: str
    metric: MetricInfo
    bound: float

    def holds(self, value: float | None) -> bool:
        """Whether ``value`` is within the bound; NaN never is, n/a always."""
        if value is None:
            return True
        return value >= self.bound if self.metric.ascending else value <= self.bound

    def __str__(self) -> str:
        return f"{'>=' if self.metric.ascending else '<='} {self.bound:g}"


def assert_consistency(
    baseline: Model,
    other: Model,
    *,
    inputs: Any,
    max_qscale_diff: float | None = None,
    min_cosine: float | None = None,
    min_sqnr_db: float | None = None,
    max_atol: float | None = None,
    max_l1: float | None = None,
    per_layer: bool = False,
    name: str | None = None,
) -> AssertionResult:
    """Assert that ``other`` computes what ``baseline`` does.

    ``max_qscale_diff``: every operator of the HBIR module ``other``, fed what the baseline computed
    for its producers, differs from the baseline's result by at most so many output scales (1: the
    published bar of the chip). The other limits compare outputs end to end, or with ``per_layer``
    every operator's result. Outputs without a scale are compared by metrics only. ``inputs``: a
    tensor, a tuple of arguments, ``qtune.Inputs``, or a list of these; the batch size may differ
    from the exported one. Raises ``AssertionError`` with the result as ``.qtune_result``.
    """
    limits = _limits(min_cosine, min_sqnr_db, max_atol, max_l1)
    if max_qscale_diff is None and not limits:
        raise ArgumentError("assert_consistency: give at least one limit, such as min_cosine=0.99")
    if max_qscale_diff is not None and not isinstance(other, HbirModule):
        raise ArgumentError(
            "assert_consistency: max_qscale_diff compares with an HBIR module (qat_bc or "
            f"quantized_bc), got {type(other).__name__}; use min_cosine or min_sqnr_db"
        )
    parts = chunks((baseline, other), inputs)
    label = model_name(other, name)
    results = []
    with march_of(baseline, other):
        if max_qscale_diff is not None and isinstance(other, HbirModule):
            results.append(_steps(baseline, other, parts, max_qscale_diff, label))
        if limits and per_layer:
            results.append(_by_metrics(limits, list(_layer_pairs(baseline, other, parts)), label))
        elif limits:
            results.append(_by_metrics(limits, list(_output_pairs(baseline, other, parts)), label))
    return conclude_all(results)


def _limits(
    cosine: float | None, sqnr: float | None, atol: float | None, l1: float | None
) -> list[Limit]:
    given = (
        ("cosine", "COSINE", cosine),
        ("sqnr_db", "SQNR", sqnr),
        ("atol", "ATOL", atol),
        ("l1", "L1", l1),
    )
    return [Limit(k, Metric.get_metric(m), float(b)) for k, m, b in given if b is not None]


@dataclass(frozen=True, slots=True)
class _Pair:
    """One thing to compare: an output, or an operator's result."""

    name: str
    baseline: Tensor
    other: Tensor
    record: OpRecord | None = None


def _output_pairs(baseline: Model, other: Model, parts: Sequence[Chunk]) -> Iterator[_Pair]:
    left, right = outputs_of(baseline, parts), outputs_of(other, parts)
    if list(left) != list(right):
        raise ArgumentError(
            f"assert_consistency: the outputs differ in structure: {list(left)} and {list(right)}"
        )
    for key, value in left.items():
        yield _Pair(f"output {key}".rstrip(), value, right[key])


def _layer_pairs(baseline: Model, other: Model, parts: Sequence[Chunk]) -> Iterator[_Pair]:
    collected: dict[str, list[tuple[Tensor, OpRecord]]] = {}
    runs = zip(parts, observations(baseline, parts), observations(other, parts), strict=True)
    for part, left, right in runs:
        for name, record in right.records.items():
            base = left.records.get(name)
            if base is not None and base.value.shape == record.value.shape:
                trimmed = part.trim(base.value)
                collected.setdefault(name, []).append((trimmed, _trimmed(record, part)))
    if not collected:
        raise ArgumentError(
            "assert_consistency: the two models have no operator in common; compare stages of the "
            "same prepared model"
        )
    for name, found in collected.items():
        values = torch.cat([v.reshape(-1) for v, _ in found])
        others = torch.cat([r.value.reshape(-1) for _, r in found])
        yield _Pair(name, values, others, found[0][1])


def _trimmed(record: OpRecord, part: Chunk) -> OpRecord:
    value = part.trim(record.value)
    return OpRecord(record.name, record.op_type, value, record.scale, record.dtype)


def _by_metrics(limits: Sequence[Limit], pairs: Sequence[_Pair], model: str) -> AssertionResult:
    values = {
        limit.key: [limit.metric(pair.baseline, pair.other) for pair in pairs] for limit in limits
    }
    worst = {limit.key: _worst(limit, values[limit.key]) for limit in limits}
    broken = [limit for limit in limits if not limit.holds(values[limit.key][worst[limit.key]])]
    decides = broken[0] if broken else limits[0]
    index = worst[decides.key]
    layers = [
        _layer(pair, decides, value) for pair, value in zip(pairs, values[decides.key], strict=True)
    ]
    return AssertionResult(
        check="consistency",
        model=model,
        ok=not broken,
        where=pairs[index].name,
        got=f"{decides.metric} {_text(values[decides.key][index])}",
        limit=str(decides),
        metrics={limit.key: values[limit.key][worst[limit.key]] for limit in limits},
        limits={limit.key: limit.bound for limit in (decides, *limits)},
        layers=layers,
        measured=decides.metric.name,
        advice=ADVICE if broken else "",
    )


def _worst(limit: Limit, values: Sequence[float | None]) -> int:
    return max(range(len(values)), key=lambda i: limit.metric.badness(values[i]))


def _layer(pair: _Pair, limit: Limit, value: float | None) -> LayerResult:
    record = pair.record
    shape = tuple(record.value.shape) if record is not None else tuple(pair.other.shape)
    dtype = record.dtype if record is not None else str(pair.other.dtype)
    scale = record.scale if record is not None else None
    badness = limit.metric.badness(value)
    return LayerResult(pair.name, value, limit.holds(value), badness, shape, dtype, scale)


def _steps(
    baseline: Model, other: HbirModule, parts: Sequence[Chunk], bound: float, model: str
) -> AssertionResult:
    errors: dict[str, OwnError] = {}
    for part, left in zip(parts, observations(baseline, parts), strict=True):
        feed = bind_call(other[0], part.inputs.args, dict(part.inputs.kwargs))
        for name, error in own_errors(left, feed, other).items():
            if name not in errors or (error.steps or 0) > (errors[name].steps or 0):
                errors[name] = error
    measured = {name: error for name, error in errors.items() if error.steps is not None}
    if not measured:
        raise ArgumentError("assert_consistency: no operator of the module has a scale to count in")
    worst = max(measured.values(), key=lambda error: error.steps or 0)
    steps = worst.steps if worst.steps is not None else math.nan
    ok = steps <= bound
    unmeasured = [name for name in errors if name not in measured]
    note = f"without a scale, not counted in steps: {', '.join(unmeasured)}" if unmeasured else ""
    return AssertionResult(
        check="consistency",
        model=model,
        ok=ok,
        where=worst.name,
        got=f"{steps:g} steps",
        limit=f"<= {bound:g}",
        metrics={"max_qscale_diff": steps, "differing": _share(measured)},
        limits={"max_qscale_diff": bound},
        layers=[_step_layer(error, bound) for error in measured.values()],
        measured="steps on the same input",
        table=note,
        advice=""
        if ok
        else "The integer operator strays from its fake-quant model: a defect, or "
        "a march rule; compare it alone with module[0].extract_operator(name).",
    )


def _share(errors: Mapping[str, OwnError]) -> float:
    return max((error.differing or 0.0 for error in errors.values()), default=0.0)


def _step_layer(error: OwnError, bound: float) -> LayerResult:
    steps = error.steps if error.steps is not None else math.nan
    return LayerResult(
        error.name,
        steps,
        steps <= bound,
        steps,
        tuple(error.value.shape),
        error.dtype,
        error.scale,
        error.differing,
        error.saturated,
    )


def _text(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.5g}"
