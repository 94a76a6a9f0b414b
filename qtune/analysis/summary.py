"""Mean and worst over the sensitivity tables of several bad cases."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from qtune.analysis.sensitivity import GAIN, HEAD
from qtune.profiler.sensitivity_table import SensitivityTable


def summarize(tables: Sequence[SensitivityTable], how: str) -> SensitivityTable:
    """One table whose cells are the ``mean`` or the ``worst`` over the cases."""
    first = tables[0]
    keys = [tuple(row[: len(HEAD)]) for row in first.rows]
    cells: dict[tuple[Any, ...], list[list[Any]]] = {key: [] for key in keys}
    for table in tables:
        for row in table.rows:
            cells.setdefault(tuple(row[: len(HEAD)]), []).append(row[len(HEAD) :])
    columns = first.columns[len(HEAD) :]
    rows = [
        [*key, *(_cell(column, values, first, how) for column, values in _columns(columns, found))]
        for key, found in cells.items()
    ]
    table = SensitivityTable(
        first.columns, rows, first.metric, first.ascending, first.output_name, how
    )
    return table.sort_by_column(f"{GAIN}_{first.metric}")


def _columns(names: Sequence[str], rows: Sequence[list[Any]]) -> list[tuple[str, list[Any]]]:
    return [(name, [row[i] for row in rows]) for i, name in enumerate(names)]


def _cell(column: str, values: Sequence[Any], table: SensitivityTable, how: str) -> float | None:
    known = [v for v in values if v is not None]
    if not known:
        return None
    if how == "mean":
        return math.fsum(known) / len(known)
    # a gain is larger-is-worse whatever the metric; a similarity is worst where it is smallest
    smallest = table.ascending and not column.startswith(GAIN)
    return min(known) if smallest else max(known)
