"""``qtune sensitivity``: the ports of a model, ranked by what each of them costs."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from qtune.analysis.files import sensitivity_stem
from qtune.analysis.quant_analysis import QuantAnalysis
from qtune.analysis.summary import summarize
from qtune.cli.metrics import limit, measured, metric_list, ranking_metric
from qtune.cli.models import Session, is_onnx, session
from qtune.cli.onnx_sensitivity import rank_calibration_nodes
from qtune.cli.operators import op_types, prefixes
from qtune.cli.outcome import Gate, InputError, Outcome
from qtune.profiler.metric import MetricInfo
from qtune.profiler.sensitivity_table import SensitivityTable
from qtune.testing.limits import Limit

ABLATION = "ablation"
GAIN = "qint8-qint16"
_VARIANTS = {"float16": "fp16"}
"""Column of a dtype, where it is called otherwise."""
_GRADIENT = "GRAD_X_ERROR"


def run(args: argparse.Namespace) -> Outcome:
    """Rank the ports of the model that the options describe."""
    if is_onnx(args.model):
        return rank_calibration_nodes(args)
    with ranking_metric(args) as metric:
        if args.method != ABLATION and metric.scope != "all":
            raise InputError(
                f"--method {args.method}: it differentiates a loss, and {metric.name} is none; "
                "give --loss module:function, which returns a tensor of one number"
            )
        return _ranked(args, metric)


def _ranked(args: argparse.Namespace, metric: MetricInfo) -> Outcome:
    with session(args) as found:
        limits = _limits(args, metric)
        tables = _tables(args, found, metric)
        gates = [_gate(one, column, tables) for one, column in limits]
        result = {
            "metric": metric.name,
            "method": args.method,
            "tables": [
                {"output": output, "case": table.case, "rows": table.records()}
                for output, cases in tables.items()
                for table in cases
            ],
        }
        facts = {**found.facts, "metric": metric.name, "method": args.method}
        text = "\n\n".join(_shown(tables, args.top))
        return Outcome(facts, result, text, gates, _files(Path(args.out_dir), tables))


def _tables(
    args: argparse.Namespace, found: Session, metric: MetricInfo
) -> dict[str, list[SensitivityTable]]:
    models = found.stage("float"), found.stage("calib")
    analysis = QuantAnalysis(
        *models, "fake_quant", out_dir=args.out_dir, metric_list=metric_list(metric)
    )
    analysis.auto_find_bad_case(found.data.calls(models[0]), topk=args.topk)
    return analysis.sensitivity(
        metric,
        prefixes=prefixes(args),
        types=op_types(args),
        output_names=None if args.output is None else tuple(args.output),
        use_sensitivity_v2=True,
        sensitivity_method=args.method,
    )


def _limits(args: argparse.Namespace, metric: MetricInfo) -> list[tuple[Limit, str]]:
    """Each limit with the column it bounds; ``""`` for that of the port's own dtype."""
    if args.method != ABLATION:
        return _gradient_limits(args)
    given = [("--max", False, args.max), ("--min", True, args.min)]
    found = [
        (limit(option, metric, value, ascending=ascending), "")
        for option, ascending, value in given
        if value is not None
    ]
    if args.max_gain is not None:
        gain = measured("gain", ascending=False)
        found.append((limit("--max-gain", gain, args.max_gain, ascending=False), GAIN))
    return found


def _gradient_limits(args: argparse.Namespace) -> list[tuple[Limit, str]]:
    for name in ("min", "max_gain"):
        if getattr(args, name) is not None:
            option = "--" + name.replace("_", "-")
            raise InputError(f"{option}: grad_x_error gives one score, of which smaller is better")
    if args.max is None:
        return []
    score = measured(_GRADIENT, ascending=False)
    return [(limit("--max", score, args.max, ascending=False), _GRADIENT)]


def _gate(limit: Limit, column: str, tables: dict[str, list[SensitivityTable]]) -> Gate:
    """``limit`` against the worst port of all outputs and cases."""
    scored = [
        (value, {"output": output, "case": table.case, **_port(row)})
        for output, cases in tables.items()
        for table in cases
        for row in table.records()
        if (value := _value(row, column, table.metric)) is not None
    ]
    if not scored:
        return Gate(limit.key, True, None, str(limit))
    value, where = max(scored, key=lambda found: limit.metric.badness(found[0]))
    return Gate(limit.key, limit.holds(value), value, str(limit), where)


def _port(row: dict[str, Any]) -> dict[str, Any]:
    return {"operator": row["op_name"], "port": row["fake_stub_type"]}


def _value(row: dict[str, Any], column: str, metric: str) -> float | None:
    if column == _GRADIENT:
        value: float | None = row[column]
        return value
    name = column or _VARIANTS.get(row["dtype"], row["dtype"])
    return row.get(f"{name}_{metric}")


def _shown(tables: dict[str, list[SensitivityTable]], top: int) -> Iterator[str]:
    """The first rows of each output's table, of its worst over several cases."""
    for output, cases in tables.items():
        table = cases[0] if len(cases) == 1 else summarize(cases, "worst")
        what = f"case {table.case}" if len(cases) == 1 else f"worst of {len(cases)} cases"
        name = f"Output {output}" if output else "The output"
        first = SensitivityTable(
            table.columns, table.rows[:top], table.metric, table.ascending, output, table.case
        )
        yield f"{name}, {what} ({len(first)} of {len(table)} ports):\n{first}"


def _files(folder: Path, tables: Mapping[str, Sequence[SensitivityTable]]) -> list[Path]:
    """The page and the tables in ``.csv``; ``.txt`` and ``.pt`` lie beside them."""
    found = sorted(folder.glob("sensitivity*_report.html"))
    for output, cases in tables.items():
        names = [table.case for table in cases]
        for case in [*names, *(["mean", "worst"] if len(names) > 1 else [])]:
            stem = sensitivity_stem(folder, output, case)
            found.append(stem.with_name(f"{stem.name}.csv"))
    return found
