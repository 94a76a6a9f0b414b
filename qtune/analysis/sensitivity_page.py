"""``sensitivity_v2_report.html``: where a ranking falls off, bars of each column, the tables.

Its size is bounded: all tables together have about ``MOST_ROWS`` rows, and bars show the first
``MOST_BARS`` stubs: 2,000 operators in ten cases make less than 10 megabytes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from qtune.analysis.outputs import named
from qtune.analysis.sensitivity import GAIN, HEAD
from qtune.analysis.summary import ranking_column
from qtune.profiler.sensitivity_table import SensitivityTable
from qtune.report.page import Section, Table, Tile, render
from qtune.report.svg import bars, falloff, holders

MOST_ROWS = 12_000
FEWEST_ROWS = 50
MOST_BARS = 30
SHARE = 0.9
SUMMARIES = {"mean": "mean over the cases", "worst": "worst of the cases"}

Record = Mapping[str, Any]


def sensitivity_page(tables: Mapping[str, Sequence[SensitivityTable]]) -> str:
    """Per output and case, the mean and worst first: pictures and the whole table.

    Single cases are folded where a mean stands before them.
    """
    count = sum(len(cases) for cases in tables.values())
    most = max(FEWEST_ROWS, MOST_ROWS // max(count, 1))
    sections = [
        Section(
            named(output),
            sections=[_ranking(table, most, folded=_is_folded(table, cases)) for table in cases],
        )
        for output, cases in tables.items()
    ]
    first = next((cases[0] for cases in tables.values() if cases), None)
    return render(
        "Sensitivity",
        sections,
        subtitle=_subtitle(first),
        sortable=True,
        tiles=[] if first is None else _tiles(first),
    )


def _subtitle(table: SensitivityTable | None) -> str:
    if table is None or ranking_column(table).startswith(GAIN):
        return "Each fake-quantize alone, everything else in float; sorted by what int16 gains"
    return (
        f"Each fake-quantize by {ranking_column(table)}, all at once at the quantized model: about "
        "how much it changes the loss"
    )


def _tiles(table: SensitivityTable) -> list[Tile]:
    values = _ranked(table)[1]
    found = [v for v in values if v is not None and math.isfinite(v) and v > 0]
    return [
        Tile(str(len(table)), "fake-quantizes"),
        Tile(str(holders(found, SHARE)), f"hold {SHARE:.0%} of the sum"),
    ]


def _is_folded(table: SensitivityTable, cases: Sequence[SensitivityTable]) -> bool:
    return table.case not in SUMMARIES and any(other.case in SUMMARIES for other in cases)


def _ranking(table: SensitivityTable, most: int, *, folded: bool) -> Section:
    rows = table.records()
    columns = table.columns[len(HEAD) :]
    shown = Table(table.columns, rows, numeric=columns, pinned=True, most=most)
    ranked = ranking_column(table)
    title = SUMMARIES.get(table.case, f"case {table.case}")
    others = [] if folded else [_others(table, [c for c in columns if c != ranked])]
    return Section(
        title,
        tables=[shown],
        pictures=[*_falloff(table), *_bars(table, ranked)],
        sections=others,
        collapsed=folded or None,
    )


def _others(table: SensitivityTable, columns: Sequence[str]) -> Section:
    """Bars of the columns that the table is not sorted by."""
    pictures = {column: _bars(table, column) for column in columns}
    left_out = [column for column, found in pictures.items() if not found]
    text = [f"The same value everywhere, or none: {', '.join(left_out)}."] if left_out else []
    drawn = [picture for found in pictures.values() for picture in found]
    return Section("Bars of the other columns", text, pictures=drawn, collapsed=True)


def _falloff(table: SensitivityTable) -> list[str]:
    labels, values = _ranked(table)
    if not values:
        return []
    column = ranking_column(table)
    title = f"Where {column} falls off: how many fake-quantizes are worth int16"
    return [falloff(values, labels, title=title, y_label=column)]


def _ranked(table: SensitivityTable) -> tuple[list[str], list[float | None]]:
    column = ranking_column(table)
    rows = table.sort_by_column(column).records()
    return [_label(row) for row in rows], [row[column] for row in rows]


def _bars(table: SensitivityTable, column: str) -> list[str]:
    """The worst of a column, first on top. Where larger is better: how far below the best."""
    is_better = table.ascending and not column.startswith(GAIN)
    rows = table.sort_by_column(column, descending=not is_better).records()
    known = [row for row in rows if row[column] is not None]
    values = {_label(row): row[column] for row in known[:MOST_BARS]}
    label = column
    if is_better:
        best = max(
            (v for v in table.column(column) if v is not None and math.isfinite(v)), default=0
        )
        values = {name: best - value for name, value in values.items()}
        label = f"{best:.7g} - {column}"
    if len(known) != 1 and len({row[column] for row in known}) < 2:
        return []
    head = f"{column}, worst first"
    title = f"{head}: {len(values)} of {len(known)}" if len(known) > len(values) else head
    return [bars(values, title=title, x_label=label)]


def _label(row: Record) -> str:
    return f"{row['op_name']} {row['fake_stub_type']}"
