"""``qtune compare``: two stages of a model on their worst inputs, operator by operator."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qtune.analysis import files
from qtune.analysis.compare import LayerComparison
from qtune.analysis.quant_analysis import QuantAnalysis
from qtune.cli.data import Data
from qtune.cli.metrics import (
    at_operator,
    metric_list,
    output_gates,
    output_limits,
    ranking_metric,
)
from qtune.cli.models import bc_models, is_bc, session
from qtune.cli.operators import (
    STEPS,
    by_blame,
    op_types,
    prefixes,
    worst_operator,
)
from qtune.cli.outcome import InputError, Outcome
from qtune.profiler.bad_case_report import BadCaseReport
from qtune.profiler.observe import Model
from qtune.report.table import text_table

STAGES = {
    "fake_quant": ("float", "calib"),
    "pre_export": ("calib", "pre_export"),
    "export": ("pre_export", "qat_bc"),
    "convert": ("pre_export", "quantized_bc"),
}
"""Which two stages each analysis type compares."""
_SHOWN = ("COSINE", "L1", "ATOL")


@dataclass(frozen=True, slots=True)
class Pair:
    """Two models, the one that says what a batch means first of them, and their data."""

    models: tuple[Model, Model]
    data: Data
    facts: Mapping[str, Any]


def run(args: argparse.Namespace) -> Outcome:
    """Compare the two models that the options describe."""
    with ranking_metric(args) as metric, _pair(args) as pair:
        limits = output_limits(args)
        metrics = metric_list(metric, *(limit.metric for limit in limits))
        analysis = QuantAnalysis(*pair.models, args.type, out_dir=args.out_dir, metric_list=metrics)
        report = analysis.auto_find_bad_case(pair.data.calls(pair.models[0]), topk=args.topk)
        gates = output_gates(report, limits)
        failing = [gate.where["case"] for gate in gates if not gate]
        case = failing[0] if failing else report.worst(metric)
        layers = {index: _layers(analysis, args, index) for index in {*failing} - {case}}
        layers[case] = _layers(analysis, args, case)  # last: its files stay
        gates = [g if g else at_operator(g, worst_operator(layers[g.where["case"]])) for g in gates]
        result = _result(report, case, layers[case])
        text = _text(report, case, layers[case], args.top)
        return Outcome(pair.facts, result, text, gates, _files(Path(args.out_dir)))


def _layers(analysis: QuantAnalysis, args: argparse.Namespace, case: int) -> LayerComparison:
    analysis.run(index=case)
    return analysis.compare_per_layer(prefixes(args), op_types(args))


@contextmanager
def _pair(args: argparse.Namespace) -> Iterator[Pair]:
    if is_bc(args.model) or is_bc(args.other):
        with _bc_pair(args) as pair:
            yield pair
        return
    if args.other is not None:
        raise InputError(
            f"OTHER: {args.other} is no .bc or .onnx file; the stages of MODEL are made from it "
            "(--type)"
        )
    with session(args) as found:
        left, right = (found.stage(name) for name in STAGES[args.type])
        facts = {**found.facts, "type": args.type}
        yield Pair((left, right), found.data, facts)


@contextmanager
def _bc_pair(args: argparse.Namespace) -> Iterator[Pair]:
    if not (is_bc(args.model) and is_bc(args.other)):
        raise InputError(
            "MODEL and OTHER: expected two .bc files, the fake-quant one first (or .onnx files, "
            "float or calibrated)"
        )
    with bc_models(args, {"MODEL": args.model, "OTHER": args.other}) as ((left, right), data):
        names = {"model": args.model, "other": args.other}
        facts = {**names, "march": right.march, "data": data.text, "type": args.type}
        yield Pair((left, right), data, facts)


def _result(report: BadCaseReport, case: int, layers: LayerComparison) -> dict[str, Any]:
    rows = [{"name": n, **row} for n, row in zip(layers.names, layers.rows, strict=True)]
    return {
        "outputs": report.statistics(),
        "bad_cases": [
            {"output": output, "metric": metric, "rank": rank, "case": index, "value": value}
            for output, metrics in report.output_to_badcase_info.items()
            for metric, cases in metrics.items()
            for rank, (index, value) in enumerate(cases, 1)
        ],
        "case": case,
        "operators": rows,
    }


def _text(report: BadCaseReport, case: int, layers: LayerComparison, top: int) -> str:
    outputs = text_table(report.statistics(), ("output", "metric", "cases", "mean", "worst"))
    parts = ["Outputs over all cases:\n" + outputs, _operators(case, layers, top)]
    rows = zip(layers.names, layers.rows, strict=True)
    advised = [f"  {name}: {row['advice']}" for name, row in rows if row["advice"]]
    if advised:
        parts.append("\n".join(["Advice:", *advised]))
    return "\n\n".join(parts)


def _operators(case: int, layers: LayerComparison, top: int) -> str:
    order, column = by_blame(layers)
    shown = [name for name in _SHOWN if name in layers.columns]
    rows = [{"name": layers.names[place], **layers.rows[place]} for place in order[:top]]
    head = f"Operators on case {case}, the worst {column} first ({len(rows)} of {len(layers)}):"
    columns = ("name", "dtype", "qscale", *dict.fromkeys((*shown, STEPS, column)))
    return f"{head}\n{text_table(rows, columns)}"


def _files(folder: Path) -> list[Path]:
    return [folder / files.REPORT_PAGE, *sorted(folder.glob("compare_per_layer_*"))]
