"""HTML views of bad cases and of the comparison per layer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from qtune.analysis.compare import OWN_TAIL, LayerComparison
from qtune.analysis.outputs import ONLY, named
from qtune.analysis.sensitivity_page import sensitivity_page
from qtune.profiler.bad_case_report import BadCaseReport
from qtune.profiler.metric import MetricInfo
from qtune.report.page import Section, Table, Tile, render
from qtune.report.svg import bars, curve, histogram

__all__ = ["badcase_page", "compare_page", "sensitivity_page"]

PERCENTILES = (50.0, 90.0, 99.0, 99.9, 99.99)
MOST_BARS = 30


def badcase_page(report: BadCaseReport) -> str:
    """Worst cases, statistics, and the distribution of each metric, with percentiles."""
    outputs = report.output_to_badcase_info
    count = max((len(v) for m in report.values.values() for v in m.values()), default=0)
    sections = [
        Section("Worst cases", sections=[_kept(name, outputs[name]) for name in outputs]),
        Section("Statistics", tables=_statistics(report)),
        Section("Distributions", sections=_distributions(report)),
    ]
    tiles = [
        Tile(str(count), "cases searched"),
        Tile(str(len(report.indices)), "cases kept"),
        Tile(str(len(outputs)), "outputs"),
        Tile(str(len(report.ascending)), "metrics"),
    ]
    subtitle = f"{count} cases searched, {len(report.indices)} kept"
    if report.device:
        subtitle += f"; {report.device}"
    return render("Bad cases", sections, subtitle=subtitle, sortable=True, tiles=tiles)


def _kept(output: str, metrics: Mapping[str, Sequence[tuple[int, float]]]) -> Section:
    """The topk of one output: a pair of columns, index and value, for each metric."""
    depth = max((len(cases) for cases in metrics.values()), default=0)
    rows: list[dict[str, Any]] = [{"rank": rank} for rank in range(1, depth + 1)]
    columns = ["rank"]
    for metric, cases in metrics.items():
        columns += [f"{metric}: index", metric]
        for row, (index, value) in zip(rows, [*cases, *[(None, None)] * depth], strict=False):
            row |= {f"{metric}: index": index, metric: value}
    return Section(named(output), tables=[Table(columns, rows, numeric=columns)])


def _statistics(report: BadCaseReport) -> list[Table]:
    found = []
    for rows, caption in (
        (report.statistics(), "Over all cases, and over the kept ones (topk)"),
        (report.exact_statistics(), "Integer and bool outputs: share of equal elements"),
    ):
        columns = tuple(rows[0]) if rows else ()
        texts = ("output", "metric")
        numeric = [column for column in columns if column not in texts]
        if rows:
            rows = [{**row, "output": row["output"] or ONLY} for row in rows]
            found.append(Table(columns, rows, caption=caption, numeric=numeric))
    return found


def _distributions(report: BadCaseReport) -> list[Section]:
    return [
        Section(
            named(output),
            sections=[
                _distribution(metric, values, ascending=report.ascending[metric])
                for metric, values in metrics.items()
            ],
        )
        for output, metrics in report.values.items()
    ]


def _distribution(metric: str, values: Sequence[float | None], *, ascending: bool) -> Section:
    finite = [v for v in values if v is not None and math.isfinite(v)]
    known = sum(v is not None for v in values)
    text = []
    if len(finite) < known:
        text.append(f"{known - len(finite)} of {known} cases are NaN or infinite; not drawn.")
    if not finite:
        return Section(metric, text or ["No case has a value."])
    # towards the bad end: high percentiles of an error, low ones of a similarity
    percentiles = [round(100 - p, 2) for p in PERCENTILES] if ascending else list(PERCENTILES)
    found = np.percentile(np.array(finite), np.array(percentiles))
    names = [f"{p:g} %" for p in percentiles]
    marks = {name: float(v) for name, v in zip(names, found, strict=True)}
    picture = histogram(finite, x_label=f"{metric} of {len(finite)} cases", marks=marks)
    table = Table(names, [marks], caption=f"percentiles of {metric}", numeric=names)
    return Section(metric, text, tables=[table], pictures=[picture])


def compare_page(comparison: LayerComparison, metrics: Sequence[MetricInfo]) -> str:
    """Advice, one curve per metric over the layers, own errors, and the table with all columns."""
    rows = [
        {"": i, "name": name, **row, "bad": bool(row["advice"])}
        for i, (name, row) in enumerate(zip(comparison.names, comparison.rows, strict=True))
    ]
    advised = [row for row in rows if row["bad"]]
    columns = ("name", "", *comparison.columns[1:], *comparison.own_columns)
    everything = Table(
        columns, rows, bad="bad", numeric=_numeric(columns, rows), wrap=("advice",), pinned=True
    )
    sections = [
        Section("Curves", pictures=_curves(comparison, metrics)),
        *_own(comparison),
        Section("Operators", tables=[everything]),
    ]
    if advised:
        shown = ("name", "dtype", "qscale", "advice")
        advice = Table(shown, advised, numeric=("qscale",), wrap=("advice",))
        sections.insert(0, Section("Advice", tables=[advice]))
    if comparison.left_out:
        missing = [{"name": n, "reason": why} for n, why in comparison.left_out.items()]
        table = Table(("name", "reason"), missing, wrap=("reason",))
        sections.append(Section("Operators without a row", tables=[table], collapsed=True))
    tiles = [
        Tile(str(len(rows)), "operators"),
        Tile(str(len(advised)), "with advice", "bad" if advised else "good"),
    ]
    subtitle = f"{len(rows)} operators, {len(advised)} with advice"
    return render("Comparison per layer", sections, subtitle=subtitle, sortable=True, tiles=tiles)


def _curves(comparison: LayerComparison, metrics: Sequence[MetricInfo]) -> list[str]:
    """A curve for each metric; operators with advice are red."""
    labels = [name or str(i) for i, name in enumerate(comparison.names)]
    pairs = zip(labels, comparison.rows, strict=True)
    bad = {label for label, row in pairs if row["advice"]}
    return [
        curve(
            {metric.name: [row[metric.name] for row in comparison.rows]},
            labels,
            title=f"{metric.name} of each operator, in order of execution",
            y_label=metric.name,
            bad=bad,
        )
        for metric in metrics
        if comparison.rows and metric.name in comparison.columns
    ]


def _own(comparison: LayerComparison) -> list[Section]:
    """The operators that add most error themselves."""
    worst = comparison.op_errors() if comparison.own_columns else None
    if worst is None or not worst.rows:
        return []
    rows = [{"name": name, **row} for name, row in zip(worst.names, worst.rows, strict=True)]
    columns = ("name", "dtype", "qscale", *worst.own_columns)
    ratio = OWN_TAIL[1]
    first = {str(row["name"]): row[ratio] for row in rows[:MOST_BARS] if row[ratio] is not None}
    picture = bars(first, title="Lowest first: the operator loses most itself", x_label=ratio)
    table = Table(columns, rows, numeric=columns[2:], pinned=True)
    text = (
        "Each operator on the baseline's own input: an error from further ahead does not count, so "
        "these numbers point at operators where the curves only grow with depth."
    )
    drawn = [picture] if first else []
    values = [row[ratio] for row in comparison.rows]
    title = f"{ratio} of each operator, in order of execution"
    drawn.append(curve({ratio: values}, comparison.names, title=title, y_label=ratio))
    return [Section("Own errors", [text], [table], drawn)]


def _numeric(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    return [c for c in columns if c == "" or any(isinstance(row[c], float) for row in rows)]
