"""HTML views of analysis results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from qtune.analysis.badcase import PERCENTILES
from qtune.analysis.compare import LayerComparison
from qtune.profiler.bad_case_report import BadCaseReport
from qtune.profiler.metric import MetricInfo
from qtune.profiler.sensitivity_table import SensitivityTable
from qtune.report.page import Section, Table, render
from qtune.report.svg import bars, curve, histogram

MOST_BARS = 30


def badcase_page(report: BadCaseReport) -> str:
    """Worst cases, statistics, and the distribution of each metric."""
    rows = [
        {"output": output, "metric": metric, "rank": rank, "index": index, "value": value}
        for output, metrics in report.output_to_badcase_info.items()
        for metric, cases in metrics.items()
        for rank, (index, value) in enumerate(cases)
    ]
    statistics = report.statistics()
    sections = [
        Section(
            "Worst cases", tables=[Table(("output", "metric", "rank", "index", "value"), rows)]
        ),
        Section(
            "Statistics", tables=[Table(tuple(statistics[0]) if statistics else (), statistics)]
        ),
        *_distributions(report),
    ]
    return render("Bad cases", sections, sortable=True)


def _distributions(report: BadCaseReport) -> list[Section]:
    sections = []
    for output, metrics in report.values.items():
        for metric, values in metrics.items():
            finite = [v for v in values if np.isfinite(v)]
            if not finite:
                continue
            # towards the bad end: high percentiles of an error, low ones of a similarity
            percentiles = (
                [100 - p for p in PERCENTILES] if report.ascending[metric] else PERCENTILES
            )
            found = np.percentile(finite, percentiles)
            rows = [
                {"percentile": f"{p:g} %", "value": float(v)}
                for p, v in zip(percentiles, found, strict=True)
            ]
            title = f"{metric} of output {output or '(single)'}"
            picture = histogram(finite, title=title, x_label=metric)
            table = Table(("percentile", "value"), rows)
            sections.append(Section(title, tables=[table], pictures=[picture]))
    return sections


def compare_page(comparison: LayerComparison, metrics: Sequence[MetricInfo]) -> str:
    """One curve per metric over the layers, then the table."""
    pictures = [
        curve(
            {metric.name: [row[metric.name] for row in comparison.rows]},
            comparison.names,
            title=f"{metric.name} of each operator, in order of execution",
            y_label=metric.name,
        )
        for metric in metrics
        if comparison.rows and metric.name in comparison.columns
    ]
    rows = [{**row, "bad": bool(row["advice"])} for row in comparison.rows]
    sections = [
        Section("Curves", pictures=pictures),
        Section("Operators", tables=[Table(comparison.columns, rows, bad="bad")]),
    ]
    return render("Comparison per layer", sections, sortable=True)


def sensitivity_page(tables: Mapping[str, Sequence[SensitivityTable]]) -> str:
    """Bars of what int16 would gain, and the tables, per output and case."""
    sections = []
    for output, cases in tables.items():
        for table in cases:
            gain = f"qint8-qint16_{table.metric}"
            top = [row for row in table.records() if row[gain] is not None][:MOST_BARS]
            values = {f"{row['op_name']} {row['fake_stub_type']}": row[gain] for row in top}
            picture = bars(values, title="gain of int16 over int8", x_label=gain)
            rows = table.records()
            sections.append(
                Section(
                    f"Output {output or '(single)'}, case {table.case}",
                    tables=[Table(tuple(table.columns), rows)],
                    pictures=[picture] if top else (),
                )
            )
    return render("Sensitivity", sections, sortable=True)
