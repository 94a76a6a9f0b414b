"""HTML views of analysis results."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from qtune.analysis.compare import LayerComparison
from qtune.profiler.bad_case_report import BadCaseReport
from qtune.profiler.metric import MetricInfo
from qtune.profiler.sensitivity_table import SensitivityTable
from qtune.report.page import Section, Table, render
from qtune.report.svg import bars, curve, histogram

MOST_BARS = 30
PERCENTILES = (50.0, 90.0, 99.0, 99.9, 99.99)


def badcase_page(report: BadCaseReport) -> str:
    """Worst cases, statistics, and the distribution of each metric."""
    rows = [
        {"output": output, "metric": metric, "rank": rank, "index": index, "value": value}
        for output, metrics in report.output_to_badcase_info.items()
        for metric, cases in metrics.items()
        for rank, (index, value) in enumerate(cases, 1)
    ]
    statistics = report.statistics()
    exact = report.exact_statistics()
    columns = ("output", "metric", "rank", "index", "value")
    summary = tuple(statistics[0]) if statistics else ()
    sections = [
        Section("Worst cases", tables=[Table(columns, rows, numeric=columns[2:])]),
        Section(
            "Statistics over all cases", tables=[Table(summary, statistics, numeric=summary[2:])]
        ),
        *_exact_section(exact),
        *_distributions(report),
    ]
    count = max((len(v) for m in report.values.values() for v in m.values()), default=0)
    subtitle = f"{count} cases searched, {len(report.indices)} kept"
    subtitle += f"; models ran on {report.device}" if report.device else ""
    return render("Bad cases", sections, subtitle=subtitle, sortable=True)


def _exact_section(rows: Sequence[dict[str, Any]]) -> list[Section]:
    """Integer and bool outputs, which have no distance."""
    if not rows:
        return []
    columns = tuple(rows[0])
    return [
        Section(
            "Share of equal elements (exact match) of integer and bool outputs",
            tables=[Table(columns, rows, numeric=columns[1:])],
        )
    ]


def _distributions(report: BadCaseReport) -> list[Section]:
    return [
        _distribution(output, metric, finite, ascending=report.ascending[metric])
        for output, metrics in report.values.items()
        for metric, values in metrics.items()
        if (finite := [v for v in values if v is not None and math.isfinite(v)])
    ]


def _distribution(output: str, metric: str, values: Sequence[float], *, ascending: bool) -> Section:
    # towards the bad end: high percentiles of an error, low ones of a similarity
    percentiles = [100 - p for p in PERCENTILES] if ascending else list(PERCENTILES)
    found = np.percentile(np.array(values), np.array(percentiles))
    rows = [
        {"percentile": f"{p:.4g} %", "value": float(v)}
        for p, v in zip(percentiles, found, strict=True)
    ]
    picture = histogram(values, x_label=metric)
    table = Table(("percentile", "value"), rows, numeric=("percentile", "value"))
    return Section(f"{metric} of {_named(output)}", tables=[table], pictures=[picture])


def compare_page(comparison: LayerComparison, metrics: Sequence[MetricInfo]) -> str:
    """One curve per metric over the layers, then the table; rows with advice are marked."""
    labels = [name or str(i) for i, name in enumerate(comparison.names)]
    pictures = [
        curve(
            {metric.name: [row[metric.name] for row in comparison.rows]},
            labels,
            title=f"{metric.name} of each operator, in order of execution",
            y_label=metric.name,
        )
        for metric in metrics
        if comparison.rows and metric.name in comparison.columns
    ]
    rows = [
        {"": i, "name": name, **row, "bad": bool(row["advice"])}
        for i, (name, row) in enumerate(zip(comparison.names, comparison.rows, strict=True))
    ]
    advised = [row for row in rows if row["bad"]]
    columns = ("", "name", *comparison.columns[1:])
    sections = [
        Section("Curves", pictures=pictures),
        Section("Operators", tables=[_layers(columns, rows)]),
    ]
    if advised:
        advice = Table(
            ("name", "dtype", "qscale", "advice"), advised, numeric=("qscale",), wrap=("advice",)
        )
        sections.insert(0, Section("Advice", tables=[advice]))
    subtitle = f"{len(rows)} operators, {len(advised)} with advice"
    return render("Comparison per layer", sections, subtitle=subtitle, sortable=True)


def _layers(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> Table:
    numeric = [c for c in columns if any(isinstance(row[c], float) for row in rows)]
    return Table(columns, rows, bad="bad", numeric=numeric)


def sensitivity_page(tables: Mapping[str, Sequence[SensitivityTable]]) -> str:
    """Bars of what int16 would gain, and the tables, per output and case."""
    sections = [
        Section(_named(output), sections=[_ranking(table) for table in cases])
        for output, cases in tables.items()
    ]
    return render(
        "Sensitivity",
        sections,
        subtitle="Each fake-quantize alone, everything else in float; sorted by what int16 gains",
        sortable=True,
    )


def _ranking(table: SensitivityTable) -> Section:
    gain = f"qint8-qint16_{table.metric}"
    rows = table.records()
    top = [row for row in rows if row[gain] is not None][:MOST_BARS]
    values = {f"{row['op_name']} {row['fake_stub_type']}": row[gain] for row in top}
    picture = bars(values, title="gain of qint16 over qint8", x_label=gain)
    head = {"mean": "mean over the cases", "worst": "worst of the cases"}
    title = head.get(table.case, f"case {table.case}")
    numeric = [c for c in table.columns if c.endswith(f"_{table.metric}")]
    shown = Table(tuple(table.columns), rows, numeric=numeric)
    return Section(title, tables=[shown], pictures=[picture] if top else ())


def _named(output: str) -> str:
    return f"output {output}" if output else "the output"
