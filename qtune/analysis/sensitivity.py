"""Sensitivity: which fake-quantize costs how much at the outputs, and what int16 would gain."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from qtune.analysis.ablation import OWN, VARIANTS, AnyPort, all_ports
from qtune.analysis.downstream import MAX_CACHE_BYTES
from qtune.analysis.float_run import FloatRun, float_run
from qtune.analysis.outputs import PostProcess, Scores
from qtune.analysis.port_runs import PortRuns, PortScores
from qtune.analysis.ranks import ALONE, Ranks
from qtune.analysis.selection import check_selection
from qtune.capture.inputs import Inputs
from qtune.errors import AnalysisError
from qtune.nn.float_mode import all_float
from qtune.nn.prepared import PreparedModel
from qtune.ops.op_types import as_names, as_types
from qtune.profiler.bad_case_report import listed
from qtune.profiler.metric import MetricInfo
from qtune.profiler.observe import require_torch, type_name
from qtune.profiler.sensitivity_table import SensitivityTable
from qtune.profiler.undisturbed import undisturbed

GAIN = "qint8-qint16"
HEAD = ("op_name", "op_type", "fake_stub_type", "dtype", "flops")
COLUMNS = ("round", "clip", "qint8", "qint16", GAIN, "fp16")

Row = list[Any]


def sensitivity_tables(
    model: nn.Module,
    inputs: Inputs,
    metric: MetricInfo,
    case: str,
    *,
    prefixes: Sequence[str] | None = None,
    types: Sequence[Any] | None = None,
    output_names: Sequence[str] | None = None,
    variants: Sequence[str] = VARIANTS,
    post_process: PostProcess | None = None,
    shown: bool | None = None,
    max_cache_bytes: int = MAX_CACHE_BYTES,
    ranks: Ranks = ALONE,
) -> dict[str, SensitivityTable]:
    """One table per output of a prepared model: each port alone, in every variant.

    The baseline is the same model with every fake-quantize off. ``prefixes`` and ``types`` together
    mean both; ``AnalysisError`` for one that nothing in the model answers to, and for an unknown
    name in ``output_names``. A cast to float16 has the variants ``fp16`` and ``own`` only. The
    table is empty where the branch that ``inputs`` take has no such port.

    ``max_cache_bytes``: how much memory the values of the baseline may take that are kept for all
    ports; where they are larger, more is computed again, with the same numbers. ``ranks``: the
    processes that rank a share of the ports each, in one of their steps. Whatever happens,
    states, training flags, random state and hooks are restored.
    """
    prefixes, output_names, types = as_names(prefixes), as_names(output_names), as_types(types)
    whole = require_torch(model, "sensitivity")
    check_selection(whole, prefixes, types)
    prepared = whole.select_branch(inputs)
    chosen = all_ports(prepared, prefixes, types)
    if not chosen:
        return {}
    run, found = _scored(
        prepared,
        inputs,
        metric,
        chosen,
        variants,
        output_names,
        post_process,
        shown,
        max_cache_bytes,
        ranks,
    )
    return {
        output: _table(chosen, found, run.flops, output, metric, variants, case)
        for output in next(iter(found[chosen[0].name].values()))
        if output_names is None or output in output_names
    }


def sensitivity_lists(
    model: nn.Module,
    inputs: Inputs,
    metric: MetricInfo,
    *,
    prefixes: Sequence[str] | None = None,
    types: Sequence[Any] | None = None,
    output_names: Sequence[str] | None = None,
    post_process: PostProcess | None = None,
    shown: bool | None = None,
    max_cache_bytes: int = MAX_CACHE_BYTES,
    ranks: Ranks = ALONE,
) -> dict[str, list[Row]]:
    """The old form: per output rows ``[op_name, sensitive_type, op_type, value, dtype, flops]``.

    Each port is quantized alone as it is configured. Most sensitive first.
    """
    tables = sensitivity_tables(
        model,
        inputs,
        metric,
        "",
        prefixes=prefixes,
        types=types,
        output_names=output_names,
        variants=(OWN,),
        post_process=post_process,
        shown=shown,
        max_cache_bytes=max_cache_bytes,
        ranks=ranks,
    )
    return {
        output: [[name, kind, op, value, dtype, flops] for name, op, kind, dtype, flops, value in t]
        for output, t in ((o, table.rows) for o, table in tables.items())
    }


def _scored(
    model: PreparedModel,
    inputs: Inputs,
    metric: MetricInfo,
    chosen: Sequence[AnyPort],
    variants: Sequence[str],
    output_names: Sequence[str] | None,
    post_process: PostProcess | None,
    shown: bool | None,
    max_cache_bytes: int,
    ranks: Ranks,
) -> tuple[FloatRun, dict[str, PortScores]]:
    # tensors of inference mode do not tell whether they were changed in place
    with torch.inference_mode(False), undisturbed(model), all_float(model):
        run = float_run(model, inputs)
        runs = PortRuns(model, inputs, metric, run.outputs, variants, post_process, max_cache_bytes)
        check_output_names(list(runs.unchanged), output_names)  # before anything takes long
        parts = ranks.everywhere("sensitivity", runs.scores(ranks.share(chosen), shown))
    return run, {port: found for part in parts for port, found in part.items()}


def _table(
    chosen: Sequence[AnyPort],
    found: Mapping[str, PortScores],
    flops: Mapping[str, str],
    output: str,
    metric: MetricInfo,
    variants: Sequence[str],
    case: str,
) -> SensitivityTable:
    rows = [
        [*head_of(port, flops), *_cells(found[port.name], output, metric, variants)]
        for port in chosen
    ]
    shown = COLUMNS if tuple(variants) == VARIANTS else tuple(variants)
    columns = [*HEAD, *(f"{name}_{metric.name}" for name in shown)]
    table = SensitivityTable(columns, rows, metric.name, metric.ascending, output, case)
    if shown == COLUMNS:
        return table.sort_by_column(f"{GAIN}_{metric.name}")
    return table.sort_by_column(f"{shown[0]}_{metric.name}", descending=not metric.ascending)


def head_of(port: AnyPort, flops: Mapping[str, str]) -> Row:
    """The cells of a port under :data:`HEAD`."""
    name, dtype = port.op.name, str(port.fake_quantize.dtype)
    return [name, type_name(port.op), port.kind, dtype, flops.get(name, "0(0%)")]


def _cells(
    scored: PortScores, output: str, metric: MetricInfo, variants: Sequence[str]
) -> list[float | None]:
    values: Scores = {name: scored[name][output] for name in variants}
    if tuple(variants) != VARIANTS:
        return list(values.values())
    values[GAIN] = gain_of(metric, values["qint8"], values["qint16"])
    return [values[name] for name in COLUMNS]


def gain_of(metric: MetricInfo, low: float | None, high: float | None) -> float | None:
    """How much better int16 is: the difference in the metric's own direction, larger for more.

    In decibels it is that of the noise, ``10 ** (-low / 10) - 10 ** (-high / 10)`` of the signal: a
    difference in dB is large where there was hardly any noise to begin with.
    """
    if low is None or high is None:
        return None
    if low == high:  # also inf against inf
        return 0.0
    if metric.decibels:
        return _noise(low) - _noise(high) if metric.ascending else _noise(-high) - _noise(-low)
    return high - low if metric.ascending else low - high


def _noise(decibels: float) -> float:
    """Noise over signal."""
    try:
        return float(10.0 ** (-decibels / 10))
    except OverflowError:
        return math.inf


def check_output_names(outputs: Sequence[str], wanted: Sequence[str] | None) -> None:
    """Raise ``AnalysisError`` for a wanted output that there is not."""
    unknown = set(wanted or ()) - set(outputs)
    if outputs and unknown:
        raise AnalysisError(
            f"sensitivity: no output named {sorted(unknown)}; this model has: "
            f"{listed(sorted(outputs))}"
        )
