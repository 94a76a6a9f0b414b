"""The files of the older toolchain, as views of the new results.

Written beside the new ones once a session was used in the older way (``Session.old_style``).
Source: the plugin guide, "QuantAnalysis Class".
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from qtune.analysis import pages
from qtune.analysis.ablation import Port, in_own_state, ports
from qtune.analysis.cases import Case
from qtune.analysis.compare import Facts, compare
from qtune.analysis.float_run import float_run
from qtune.analysis.outputs import scores
from qtune.analysis.sensitivity import Row
from qtune.analysis.session import Session
from qtune.nn.float_mode import all_float
from qtune.profiler.metric import Metric, MetricInfo
from qtune.profiler.observe import run_model, type_name
from qtune.profiler.record import Observation
from qtune.profiler.undisturbed import same_randomness
from qtune.report.files import write_text, write_with
from qtune.report.table import shown_type, text_table

COMPARED, ADVISED, PAGE = "compare_per_layer_out", "abnormal_layer_advisor", "profiler.html"
RANKED = "sensitive_ops"
METRICS = {
    "Cosine": "COSINE",
    "MSE": "MSE",
    "L1": "L1",
    "KL": "KL",
    "SQNR": "SQNR",
    "Atol": "ATOL",
    "Rtol": "RTOL",
}
"""Column of the older table -> metric."""
HEAD = {
    "mod_name": "mod_name",
    "base_op_type": "base_op_type",
    "analy_op_type": "analy_op_type",
    "shape": "shape",
    "quant_dtype": "dtype",
    "qscale": "qscale",
}
STATISTICS = ("min", "max", "mean", "var")
SIDES = ("base_model", "analy_model")
KINDS = {"output": "activation", "weight": "weight"}
"""The older names of what is quantized; beside them ``both``."""


def write_old_comparison(
    session: Session, baseline: Observation, analysed: Observation, facts: Facts
) -> None:
    """Write ``compare_per_layer_out``, ``abnormal_layer_advisor`` (text and csv), and
    ``profiler.html``.
    """
    metrics = [Metric.get_metric(name) for name in METRICS.values()]
    found = compare(baseline, analysed, metrics, facts)
    rows = [
        _old_row(row, baseline.records[name].value, analysed.records[name].value)
        for name, row in zip(found.names, found.rows, strict=True)
    ]
    columns = tuple(rows[0]) if rows else (*HEAD, *METRICS)
    _write(session, COMPARED, columns, rows, index=True)
    advised = [
        {**{name: row[name] for name in HEAD}, "advice": new["advice"]}
        for row, new in zip(rows, found.rows, strict=True)
        if new["advice"]
    ]
    _write(session, ADVISED, (*HEAD, "advice"), advised, index=False)
    write_text(session.out_dir / PAGE, pages.compare_page(found, metrics))


def write_old_ranking(
    session: Session, case: Case, metric: MetricInfo, output: str, rows: Sequence[Row]
) -> None:
    """Write ``sensitive_ops.txt`` and ``.pt``: activation, weight and both, most sensitive first.

    ``rows``: of the new list for one output. What quantizes an input has no place in the older one.
    """
    old = [[name, KINDS[kind], op, value] for name, kind, op, value, *_ in rows if kind in KINDS]
    listed = {row[0] for row in old}
    old += [row for row in _both(session, case, metric, output) if row[0] in listed]
    old.sort(key=lambda row: metric.badness(row[3]), reverse=True)
    header = ("op_name", "sensitive_type", "op_type", metric.name)
    path = session.out_dir / f"{RANKED}.pt"
    shown = [[name, kind, shown_type(op), value] for name, kind, op, value in old]
    write_text(path.with_suffix(".txt"), text_table(shown, header, style="plain") + "\n")
    write_with(path, lambda target: torch.save(old, target))


def _old_row(row: Mapping[str, Any], base: Tensor, analysed: Tensor) -> dict[str, Any]:
    made = {old: row[new] for old, new in (HEAD | METRICS).items()}
    variances = dict(zip(SIDES, map(_variance, (base, analysed)), strict=True))
    for what in STATISTICS:
        for side in SIDES:
            made[f"{side}_{what}"] = variances[side] if what == "var" else row[f"{side}_{what}"]
    return made


def _variance(value: Tensor) -> float | None:
    if value.numel() == 0 or value.is_complex():
        return None
    return float(value.double().var()) if value.numel() > 1 else 0.0


def _both(session: Session, case: Case, metric: MetricInfo, output: str) -> list[Row]:
    """Operators with a weight: weight and result quantized together, all else in float."""
    side, model = session.torch_side()
    with session.alone(case, side) as inputs, all_float(model):
        chosen = model.select_branch(inputs)
        baseline = float_run(chosen, inputs).outputs

        def score(pair: tuple[Port, Port]) -> float | None:
            with in_own_state(pair[0]), in_own_state(pair[1]), same_randomness(chosen):
                outputs = run_model(chosen, inputs)
                return scores(metric, baseline, outputs, session.post_process).get(output)

        return [
            [pair[0].op.name, "both", type_name(pair[0].op), score(pair)]
            for pair in _pairs(ports(chosen))
        ]


def _pairs(all_ports: Sequence[Port]) -> list[tuple[Port, Port]]:
    by_op: dict[str, dict[str, Port]] = {}
    for port in all_ports:
        by_op.setdefault(port.op.name, {})[port.kind] = port
    return [(k["output"], k["weight"]) for k in by_op.values() if {"output", "weight"} <= set(k)]


def _write(
    session: Session,
    name: str,
    columns: Sequence[str],
    rows: Sequence[Mapping[str, Any]],
    *,
    index: bool,
) -> None:
    path = session.out_dir / f"{name}.txt"
    write_text(path, text_table(rows, columns, index=index, numbers_right=True) + "\n")
    write_text(path.with_suffix(".csv"), _csv(columns, rows))


def _csv(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["", *columns])
    for place, row in enumerate(rows):
        writer.writerow([place, *(row[column] for column in columns)])
    return text.getvalue()
