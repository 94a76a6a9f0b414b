"""Sensitivity v2: which fake-quantize costs how much at the outputs, and what int16 would gain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from tqdm import tqdm

from qtune.analysis.ablation import VARIANTS, Port, all_float, outputs_with, ports
from qtune.analysis.observe import observe, type_name
from qtune.capture.inputs import Inputs
from qtune.capture.structure import flatten_named
from qtune.errors import AnalysisError
from qtune.profiler.metric import MetricInfo
from qtune.profiler.sensitivity_table import SensitivityTable

GAIN = "qint8-qint16"
HEAD = ("op_name", "op_type", "fake_stub_type", "dtype", "flops")
Scores = dict[str, float | None]


def metric_columns(metric: MetricInfo) -> list[str]:
    """``round_ATOL``, ``clip_ATOL``, ``qint8_ATOL``, ``qint16_ATOL``, the gain, ``fp16_ATOL``."""
    names = ("round", "clip", "qint8", "qint16", GAIN, "fp16")
    return [f"{name}_{metric.name}" for name in names]


def scores(metric: MetricInfo, baseline: Any, outputs: Any) -> Scores:
    """The metric per output name; ``all`` for a metric of scope all."""
    if metric.scope == "all":
        return {"all": metric(baseline, outputs)}
    pairs = zip(flatten_named(baseline), flatten_named(outputs), strict=True)
    return {
        name: metric(a, b)
        for (name, a), (_, b) in pairs
        if isinstance(a, Tensor) and a.is_floating_point()
    }


def sensitivity_tables(
    model: nn.Module,
    inputs: Inputs,
    metric: MetricInfo,
    case: str,
    *,
    prefixes: Sequence[str] | None = None,
    types: Sequence[type] | None = None,
    output_names: Sequence[str] | None = None,
    variants: Sequence[str] = VARIANTS,
    silent: bool | None = None,
) -> dict[str, SensitivityTable]:
    """One table per output of a prepared model: each port alone, in every variant.

    The baseline is the same model with every fake-quantize off; whatever happens, states, training
    flags and hooks are restored.
    """
    chosen = ports(model, prefixes, types)
    with all_float(model):
        run = observe(model, inputs)
        baseline = run.outputs
        flops = flops_of(chosen, run.records)
        results: dict[str, list[list[Any]]] = {}
        for port in tqdm(chosen, desc="sensitivity", unit="stub", disable=silent):
            found = {
                name: scores(metric, baseline, outputs_with(model, port, name, inputs))
                for name in variants
            }
            for output in found[variants[0]]:
                row = _row(port, {v: found[v][output] for v in variants}, flops, metric)
                results.setdefault(output, []).append(row)
    _check_names(results, output_names)
    tables = {
        output: SensitivityTable(
            [*HEAD, *_columns(metric, variants)], rows, metric.name, metric.ascending, output, case
        )
        for output, rows in results.items()
        if output_names is None or output in output_names
    }
    return {output: _sorted(table, metric, variants) for output, table in tables.items()}


def _columns(metric: MetricInfo, variants: Sequence[str]) -> list[str]:
    if tuple(variants) == VARIANTS:
        return metric_columns(metric)
    return [f"{name}_{metric.name}" for name in variants]


def _row(
    port: Port, values: Mapping[str, float | None], flops: Mapping[str, str], metric: MetricInfo
) -> list[Any]:
    head = [
        port.op.name,
        type_name(port.op),
        port.kind,
        str(port.fake_quantize.dtype),
        flops.get(port.op.name, "0(0%)"),
    ]
    if tuple(values) != VARIANTS:
        return [*head, *values.values()]
    gain = gain_of(metric, values["qint8"], values["qint16"])
    named = {**values, GAIN: gain}
    return [*head, *(named[n] for n in ("round", "clip", "qint8", "qint16", GAIN, "fp16"))]


def gain_of(metric: MetricInfo, low: float | None, high: float | None) -> float | None:
    """How much better int16 is, in the metric's own direction: larger is a larger gain."""
    if low is None or high is None:
        return None
    if low == high:  # also inf against inf
        return 0.0
    return high - low if metric.ascending else low - high


def _sorted(
    table: SensitivityTable, metric: MetricInfo, variants: Sequence[str]
) -> SensitivityTable:
    if tuple(variants) == VARIANTS:
        return table.sort_by_column(f"{GAIN}_{metric.name}")
    return table.sort_by_column(f"{variants[0]}_{metric.name}", descending=not metric.ascending)


def _check_names(results: Mapping[str, Any], output_names: Sequence[str] | None) -> None:
    unknown = set(output_names or ()) - set(results)
    if results and unknown:
        raise AnalysisError(
            f"sensitivity: no output named {sorted(unknown)}; this model has: {sorted(results)}"
        )


def flops_of(chosen: Sequence[Port], records: Mapping[str, Any]) -> dict[str, str]:
    """Multiply-adds per operator with its share of the whole model, as ``5184(98.18%)``."""
    counts: dict[str, int] = {}
    ops = {port.op.name: port.op for port in chosen}
    for name, op in ops.items():
        record = records.get(name)
        if op.spec.flops is None or record is None:
            continue
        counts[name] = op.spec.flops(op.attrs, record.input_shapes, tuple(record.value.shape))
    total = sum(counts.values()) or 1
    return {name: f"{count}({count / total:.2%})" for name, count in counts.items() if count}
