"""Sensitivity tables: values with a text, a csv, and a ``.pt`` for torch's safe load."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from qtune.errors import ArgumentError, kind_of
from qtune.profiler.safe_load import load_safely
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
        if len({isinstance(row[index], str) for row in self.rows if row[index] is not None}) > 1:
            raise ArgumentError(f"column {name!r} holds numbers and texts; it has no order")
        known = [row for row in self.rows if row[index] is not None]
        nan = [row for row in known if row[index] != row[index]]
        numbers = [row for row in known if row[index] == row[index]]
        ordered = sorted(numbers, key=lambda row: row[index], reverse=descending)
        return self._with(self.columns, nan + ordered + [r for r in self.rows if r[index] is None])

    def arranged(self, places: Sequence[int]) -> SensitivityTable:
        """A table of the rows at ``places``, in that order."""
        return self._with(self.columns, [self.rows[place] for place in places])

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
            "ascending": self.ascending,
            "output_name": self.output_name,
            "case": self.case,
        }

    def __str__(self) -> str:
        return text_table(self.rows, self.columns, style="plain", digits=_DIGITS)

    def save(self, stem: str | os.PathLike[str]) -> None:
        """Write ``<stem>.txt``, ``.csv`` and ``.pt``; one of these endings is taken off first."""
        write_text(_with_ending(stem, ".txt"), str(self) + "\n")
        write_text(_with_ending(stem, ".csv"), self.to_pandas().to_csv(index=False))
        write_with(_with_ending(stem, ".pt"), lambda path: torch.save(self, path))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> SensitivityTable:
        """The table of a ``.pt`` file (or of the stem given to ``save``), never unpickled unsafely.

        ``FileNotFoundError`` where there is none, ``ArgumentError`` for a file of something else,
        ``AnalysisError`` for one that can't be read.
        """
        file = _with_ending(path, ".pt")
        if not file.exists():
            raise FileNotFoundError(
                f"{file} does not exist; sensitivity(use_sensitivity_v2=True) writes such files"
            )
        table = load_safely(file)
        if not isinstance(table, cls):
            raise ArgumentError(f"{file} holds {kind_of(table)}, not a sensitivity table")
        return table

    def _index(self, name: str) -> int:
        if name not in self.columns:
            raise ArgumentError(f"no column {name!r}; this table has: {', '.join(self.columns)}")
        return self.columns.index(name)

    def _with(self, columns: list[str], rows: list[list[Any]]) -> SensitivityTable:
        return SensitivityTable(
            columns, rows, self.metric, self.ascending, self.output_name, self.case
        )


_ENDINGS = (".txt", ".csv", ".pt")
_DIGITS = 9
"""Decimals in text, as the document prints them: a clip error may be 3.6e-7."""


def _with_ending(stem: str | os.PathLike[str], ending: str) -> Path:
    path = Path(stem)
    name = path.stem if path.suffix in _ENDINGS else path.name
    return path.with_name(name + ending)
