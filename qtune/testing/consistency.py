"""``assert_consistency``: two stages of one model compute the same, as far as a limit allows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from qtune.errors import ArgumentError
from qtune.hbir.module import HbirModule
from qtune.profiler.observe import Model, OpRecord
from qtune.testing.arguments import Onnx, check_hbir, check_model, check_switch
from qtune.testing.codes import code_shares
from qtune.testing.limits import METRICS, Limit, bound_of, limits_of
from qtune.testing.onnx_inputs import ports_of
from qtune.testing.origin import Origin, origin_of
from qtune.testing.record import conclude_all
from qtune.testing.result import LAYERS, OUTPUTS, AssertionResult, LayerResult
from qtune.testing.running import AnyModel, Chunk, chunks, comparing, observations, outputs_of
from qtune.testing.steps import steps_result

_CHECK = "assert_consistency"
_MOST_CHUNKS = 4  # all operators' results on them are in memory at a time
ADVICE = (
    "Look at the first bad layer: its range, its scale, and whether calibration saw such data; "
    "raise it to qint16 or give it a fixed scale."
)

FLOAT_ADVICE = (
    "The first bad layer gives its result in full precision, so the error is that of its input or "
    "weight: assert_sensitivity_below on stages.calib says which of them, and what to raise."
)

END_TO_END_ADVICE = (
    "This says that there is an error, not where: run again with per_layer=True, or "
    "assert_sensitivity_below on stages.calib, to find the operator."
)

_FOR_ONNX = {
    ADVICE: "Look at the first bad layer: its range, and whether calibration saw such data; raise "
    'it to int16 (quant_config={"node_config": {NODE: {"qtype": "int16"}}}) or choose another '
    "calibration_type.",
    **{
        text: text.replace(".calib ", ".calibrated ").replace(".calib,", ".calibrated,")
        for text in (FLOAT_ADVICE, END_TO_END_ADVICE)
    },
}
"""The same about models that were made from ONNX."""


def assert_consistency(
    baseline: Model | Onnx,
    other: Model | Onnx,
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
    every operator's result. Outputs without a scale are compared by metrics only, and named.
    Where outputs are too far off, the message has the operators as well.
    ``inputs``: a tensor, a tuple of arguments, ``qtune.Inputs``, or a list of these; the batch size
    may differ from the exported one. ONNX models come as paths, as ``ModelProto`` or from
    ``OnnxStages``; their inputs may also be arrays, dicts by input name, or a folder of calibration
    data. Raises ``AssertionError`` with the result as
    ``.qtune_result``, ``ArgumentError`` for models that can't be compared.
    """
    __tracebackhide__ = True
    given = {
        "min_cosine": min_cosine,
        "min_sqnr_db": min_sqnr_db,
        "max_atol": max_atol,
        "max_l1": max_l1,
    }
    limits = limits_of(_CHECK, given)
    if max_qscale_diff is None and not limits:
        raise ArgumentError(
            f"{_CHECK}: give at least one limit: max_qscale_diff, {', '.join(METRICS)}"
        )
    check_switch(_CHECK, "per_layer", per_layer)
    left, right = check_model(_CHECK, "baseline", baseline), check_model(_CHECK, "other", other)
    parts = chunks((left, right), inputs)
    origin = origin_of(right, name)
    results = []
    with comparing(left, right):
        if max_qscale_diff is not None:
            bound = bound_of(_CHECK, "max_qscale_diff", max_qscale_diff)
            module = check_hbir(f"{_CHECK}: max_qscale_diff", "other", right)
            results.append(steps_result(left, module, parts, bound, origin))
        if limits:
            if per_layer:
                pairs, note = _layer_pairs(left, right, parts)
                found = replace(_by_metrics(limits, pairs, origin), table=note)
            else:
                found = _by_metrics(limits, list(_output_pairs(left, right, parts)), origin)
            if not (found.ok or per_layer):
                found = _down_to_layers(found, limits, left, right, parts, origin)
            results.append(found)
    if ports_of(right):
        results = [replace(r, advice=_FOR_ONNX.get(r.advice, r.advice)) for r in results]
    return conclude_all(results)


@dataclass(frozen=True, slots=True)
class _Pair:
    """One thing to compare: an output, or an operator's result. ``record``: of the other side."""

    name: str
    baseline: Tensor
    other: Tensor
    record: OpRecord | None = None

    def __post_init__(self) -> None:
        if self.baseline.shape != self.other.shape:
            raise ArgumentError(
                f"{_CHECK}: {self.name}: the baseline's result has shape "
                f"{tuple(self.baseline.shape)}, the other's {tuple(self.other.shape)}; compare "
                "stages of the same model"
            )


def _output_pairs(baseline: AnyModel, other: AnyModel, parts: Sequence[Chunk]) -> Iterator[_Pair]:
    left, right = outputs_of(baseline, parts), outputs_of(other, parts)
    same_names = list(left) == list(right)
    if not same_names and (len(left) != len(right) or not _without_containers(baseline, other)):
        raise ArgumentError(
            f"{_CHECK}: the outputs differ in structure: {list(left)} and {list(right)}"
        )
    for (key, value), found in zip(left.items(), right.values(), strict=True):
        yield _Pair(f"output {key}".rstrip(), value, found)


def _without_containers(*models: AnyModel) -> bool:
    """Whether a module was exported without the containers of its outputs, so that names differ."""
    return any(isinstance(m, HbirModule) and not m[0].support_pytree for m in models)


def _layer_pairs(
    baseline: AnyModel, other: AnyModel, parts: Sequence[Chunk]
) -> tuple[list[_Pair], str]:
    """The results of all operators that both have, and a note that names the others."""
    collected: dict[str, list[_Pair]] = {}
    alone: dict[str, None] = {}
    runs = zip(parts, observations(baseline, parts), observations(other, parts), strict=True)
    for part, left, right in runs:
        for name, record in right.records.items():
            base = left.records.get(name)
            if base is None:
                alone[name] = None
                continue
            pair = _Pair(name, part.trim(base.value), part.trim(record.value), record)
            collected.setdefault(name, []).append(pair)
    if not collected:
        raise ArgumentError(
            f"{_CHECK}: the two models have no operator in common; compare stages of the same "
            "prepared model"
        )
    note = f"no counterpart in the baseline, not compared: {', '.join(alone)}" if alone else ""
    return [_joined(name, found) for name, found in collected.items()], note


def _joined(name: str, pairs: Sequence[_Pair]) -> _Pair:
    """One operator over all chunks."""
    values = torch.cat([pair.baseline.reshape(-1) for pair in pairs])
    others = torch.cat([pair.other.reshape(-1) for pair in pairs])
    return _Pair(name, values, others, pairs[0].record)


def _by_metrics(limits: Sequence[Limit], pairs: Sequence[_Pair], origin: Origin) -> AssertionResult:
    """The worst of ``pairs`` by each limit; the first limit that is broken decides."""
    if not any(pair.baseline.numel() for pair in pairs):
        raise ArgumentError(f"{_CHECK}: there is nothing to compare: no output holds an element")
    values = {
        limit.key: [limit.metric(pair.baseline, pair.other) for pair in pairs] for limit in limits
    }
    worst = {limit.key: limit.worst(values[limit.key]) for limit in limits}
    broken = [limit for limit in limits if not limit.holds(values[limit.key][worst[limit.key]])]
    decides = broken[0] if broken else limits[0]
    index = worst[decides.key]
    end_to_end = pairs[index].record is None
    deciding = values[decides.key]
    layers = [_layer(pair, decides, v) for pair, v in zip(pairs, deciding, strict=True)]
    return AssertionResult(
        check="consistency",
        model=origin.model,
        ok=not broken,
        where=pairs[index].name,
        got=decides.shown(deciding[index]),
        limit=str(decides),
        metrics={limit.key: values[limit.key][worst[limit.key]] for limit in limits},
        limits={limit.key: limit.bound for limit in (decides, *limits)},
        layers=origin.located(layers),
        measured=f"{decides.metric} of {'the outputs' if end_to_end else 'each operator'}",
        parts=OUTPUTS if end_to_end else LAYERS,
        advice=_advice(layers, end_to_end),
        artefact=origin.artefact,
        provenance=origin.provenance,
    )


def _advice(layers: Sequence[LayerResult], end_to_end: bool) -> str:
    """What to do about those of ``layers`` that are bad."""
    first = next((layer for layer in layers if not layer.ok), None)
    if first is None:
        return ""
    if end_to_end:
        return END_TO_END_ADVICE
    return FLOAT_ADVICE if first.dtype == "torch.float32" else ADVICE


def _down_to_layers(
    found: AssertionResult,
    limits: Sequence[Limit],
    baseline: AnyModel,
    other: AnyModel,
    parts: Sequence[Chunk],
    origin: Origin,
) -> AssertionResult:
    """Outputs that are too far off, with the operators in which the error grows beyond the limit.

    Where operators can't be compared, or none is beyond it, ``found`` as it is.
    """
    decides = next(limit for limit in limits if not limit.holds(found.metrics[limit.key]))
    looked_at = parts[:_MOST_CHUNKS]
    try:
        pairs, _ = _layer_pairs(baseline, other, looked_at)
        inside = _by_metrics([decides], pairs, origin)
    except Exception as error:  # noqa: BLE001 - looking deeper must not hide what was found
        return replace(found, table=f"operators can't be compared: {error}")
    if inside.ok:
        return found
    lines = ["beyond the limit:", *(f"  {bad.line()}" for bad in found.layers if not bad.ok)]
    if len(parts) > len(looked_at):
        lines.append(f"operators: on the first {len(looked_at)} of {len(parts)} batches")
    return replace(
        found,
        layers=inside.layers,
        measured=inside.measured,
        parts=LAYERS,
        table="\n".join(lines),
        advice=inside.advice,
    )


def _layer(pair: _Pair, limit: Limit, value: float | None) -> LayerResult:
    record = pair.record
    shape = tuple(pair.other.shape) if record is None else tuple(record.value.shape)
    dtype = str(pair.other.dtype) if record is None else record.dtype
    scale = None if record is None else record.scale
    shares = code_shares(pair.baseline, pair.other, scale, dtype)
    badness = limit.metric.badness(value)
    return LayerResult(pair.name, value, limit.holds(value), badness, shape, dtype, scale, *shares)
