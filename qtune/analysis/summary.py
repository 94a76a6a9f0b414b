"""Mean and worst over the sensitivity tables of several bad cases."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from qtune.analysis.sensitivity import GAIN, HEAD
from qtune.profiler.sensitivity_table import SensitivityTable

_KEY = (HEAD.index("op_name"), HEAD.index("fake_stub_type"))


def summarize(tables: Sequence[SensitivityTable], how: str) -> SensitivityTable:
    """One table whose cells are the ``mean`` or the ``worst`` over the cases that have the stub.

    A case of another branch of the model has other stubs.
    """
    first = tables[0]
    heads: dict[tuple[Any, ...], list[Any]] = {}
    cells: dict[tuple[Any, ...], list[list[Any]]] = {}
    for row in (row for table in tables for row in table.rows):
        heads.setdefault(_key(row), row[: len(HEAD)])
        cells.setdefault(_key(row), []).append(row[len(HEAD) :])
    columns = first.columns[len(HEAD) :]
    rows = [
        [*heads[key], *(_cell(name, found, i, first, how) for i, name in enumerate(columns))]
        for key, found in cells.items()
    ]
    table = SensitivityTable(
        first.columns, rows, first.metric, first.ascending, first.output_name, how
    )
    return table.sort_by_column(ranking_column(table))


def ranking_column(table: SensitivityTable) -> str:
    """The column that tables of this kind are sorted by: the gain, else the first score."""
    gain = f"{GAIN}_{table.metric}"
    return gain if gain in table.columns else table.columns[len(HEAD)]


def _key(row: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(row[i] for i in _KEY)


def _cell(
    column: str, rows: Sequence[list[Any]], index: int, table: SensitivityTable, how: str
) -> float | None:
    known: list[float] = [row[index] for row in rows if row[index] is not None]
    if not known:
        return None
    if any(math.isnan(value) for value in known):
        return math.nan
    if how == "mean":
        return sum(known) / len(known)
    # a gain is larger-is-worse whatever the metric; a similarity is worst where it is smallest
    smallest = table.ascending and not column.startswith(GAIN)
    return min(known) if smallest else max(known)
