"""``statistic.txt``: tables of tensors in numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from qtune.profiler.op_info import TensorInfo
from qtune.report.files import write_text
from qtune.report.table import text_table

COLUMNS = (
    *("Index", "Op Name", "Mod Name", "Attr", "Dtype", "Scale"),
    *("Min", "Max", "Mean", "Var", "Shape"),
)
STACK = "Stack"
FILE = "statistic.txt"
BY_ORDER, BY_RANGE = "In order of execution:", "In order of range, the largest first:"
NOT_FINITE = "With NaN or infinity:"
PER_CHANNEL = "per channel"


@dataclass(frozen=True, slots=True)
class TensorRow:
    """One tensor of one operator. ``index`` counts the calls of operators."""

    index: int
    op_type: str
    module: str
    source: str
    tensor: TensorInfo

    def cells(self) -> dict[str, Any]:
        """By column of ``statistic.txt``."""
        tensor = self.tensor
        numbers = {
            "Min": tensor.min,
            "Max": tensor.max,
            "Mean": tensor.mean,
            "Var": tensor.var,
            "Shape": f"torch.Size({list(tensor.shape)})",
        }
        return {
            "Index": self.index,
            "Op Name": self.op_type,
            "Mod Name": self.module,
            "Attr": tensor.attr,
            "Dtype": tensor.dtype,
            "Scale": scale_cell(tensor),
            **numbers,
            STACK: self.source,
        }


@dataclass(frozen=True, slots=True)
class StatisticTable:
    """What ``table()`` writes; true if no tensor holds NaN or infinity.

    ``rows``: in order of execution. ``with_stack``: whether the text has the column Stack.
    """

    rows: tuple[TensorRow, ...]
    with_stack: bool = False

    def __bool__(self) -> bool:
        return not self.not_finite()

    def by_range(self) -> tuple[TensorRow, ...]:
        """The rows by ``max - min``, the largest first; NaN before all, empty tensors last."""
        return tuple(sorted(self.rows, key=lambda row: range_key(row.tensor), reverse=True))

    def not_finite(self) -> tuple[TensorRow, ...]:
        """The rows of tensors with NaN or infinity."""
        return tuple(row for row in self.rows if row.tensor.nan or row.tensor.inf)

    def to_dict(self) -> list[dict[str, Any]]:
        """The rows as plain values."""
        return [
            {
                "index": row.index,
                "op_type": row.op_type,
                "module": row.module,
                "source": row.source,
                **asdict(row.tensor),
            }
            for row in self.rows
        ]

    def to_pandas(self) -> pd.DataFrame:
        """One line for each tensor."""
        return pd.DataFrame(self.to_dict())

    def __str__(self) -> str:
        columns = (*COLUMNS, STACK) if self.with_stack else COLUMNS
        return statistic_text(
            [row.cells() for row in self.rows],
            [row.cells() for row in self.by_range()],
            [_counted(row.cells(), row.tensor) for row in self.not_finite()],
            columns,
        )

    def save(self, folder: Path) -> Path:
        """Write ``statistic.txt``."""
        return write_text(folder / FILE, f"{self}\n")


def statistic_text(
    by_order: Sequence[Mapping[str, Any]],
    by_range: Sequence[Mapping[str, Any]],
    not_finite: Sequence[Mapping[str, Any]],
    columns: Sequence[str],
) -> str:
    """The two tables, and that of NaN and infinity where there is any."""
    parts = {BY_ORDER: text_table(by_order, columns), BY_RANGE: text_table(by_range, columns)}
    if not_finite:
        parts[NOT_FINITE] = text_table(not_finite, (*columns, "NaN", "Inf"))
    return "\n\n".join(f"{title}\n{table}" for title, table in parts.items())


def range_key(tensor: TensorInfo) -> float:
    """What tables of ranges are sorted by."""
    if tensor.range is None:
        return -math.inf
    return math.inf if math.isnan(tensor.range) else tensor.range


def scale_cell(tensor: TensorInfo, *, all_channels: bool = False) -> Any:
    """The scale, "per channel" for several unless all are wanted, ``None`` for a float."""
    if tensor.scale is None:
        return None
    if not tensor.is_per_channel:
        return tensor.scale[0]
    return ", ".join(f"{s:.7f}" for s in tensor.scale) if all_channels else PER_CHANNEL


def _counted(cells: dict[str, Any], tensor: TensorInfo) -> dict[str, Any]:
    return {**cells, "NaN": tensor.nan, "Inf": tensor.inf}
