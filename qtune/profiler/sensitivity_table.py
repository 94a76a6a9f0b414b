"""Sensitivity tables: values with a text, a csv, and a ``.pt`` for torch's safe load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from qtune.errors import ArgumentError
from qtune.report.files import write_text, write_with
from qtune.report.table import text_table

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class SensitivityTable:
    """Rows of the sensitivity of one output on one case, worst first.

    ``columns`` name the cells of each row; ``metric`` is the metric's name, ``ascending`` whether
    larger values of it are better.
    """

    columns: list[str]
    rows: list[list[Any]]
    metric: str
    ascending: bool
    output_name: str
    case: str

    def __len__(self) -> int:
        return len(self.rows)

    def column(self, name: str) -> list[Any]:
        """The cells of one column."""
        index = self._index(name)
        return [row[index] for row in self.rows]

    def records(self) -> list[dict[str, Any]]:
        """One dict per row."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]

    def sort_by_column(self, name: str, descending: bool = True) -> SensitivityTable:
        """A table sorted by a column; NaN, the worst of all, comes first, cells without value last.

        Rows of equal value keep their order.
        """
        index = self._index(name)
        known = [row for row in self.rows if row[index] is not None]
        nan = [row for row in known if row[index] != row[index]]
        numbers = [row for row in known if row[index] == row[index]]
        ordered = sorted(numbers, key=lambda row: row[index], reverse=descending)
        return self._with(self.columns, nan + ordered + [r for r in self.rows if r[index] is None])

    def with_column(self, name: str, values: Sequence[Any]) -> SensitivityTable:
        """A table with one more column."""
        rows = [[*row, value] for row, value in zip(self.rows, values, strict=True)]
        return self._with([*self.columns, name], rows)

    def to_pandas(self) -> pd.DataFrame:
        """The table as a data frame."""
        import pandas as pd

        return pd.DataFrame(self.rows, columns=self.columns)

    def to_dict(self) -> dict[str, Any]:
        """Plain containers."""
        return {
            "columns": list(self.columns),
            "rows": [list(row) for row in self.rows],
            "metric": self.metric,
            "output_name": self.output_name,
            "case": self.case,
        }

    def __str__(self) -> str:
        return text_table(self.rows, self.columns, style="plain")

    def save(self, stem: Path) -> None:
        """Write ``<stem>.txt``, ``.csv`` and ``.pt``."""
        write_text(stem.with_name(stem.name + ".txt"), str(self) + "\n")
        write_text(stem.with_name(stem.name + ".csv"), self.to_pandas().to_csv(index=False))
        write_with(stem.with_name(stem.name + ".pt"), lambda path: torch.save(self, path))

    def _index(self, name: str) -> int:
        if name not in self.columns:
            raise ArgumentError(f"no column {name!r}; this table has: {', '.join(self.columns)}")
        return self.columns.index(name)

    def _with(self, columns: list[str], rows: list[list[Any]]) -> SensitivityTable:
        return SensitivityTable(
            columns, rows, self.metric, self.ascending, self.output_name, self.case
        )
