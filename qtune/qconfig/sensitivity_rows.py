"""Reads the sensitivity tables that there are: values, lists of lists, saved files."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from qtune.errors import QconfigError

_NAME, _PORT, _DTYPE = "op_name", "fake_stub_type", "dtype"
_OLD_COLUMNS = (_NAME, _PORT, "op_type", "metric", _DTYPE, "flops")
_OLD_PORTS: Mapping[str, tuple[str, ...]] = {
    "activation": ("output",),
    "both": ("output", "weight"),
}
"""What the oldest lists have in the place of a port."""
_TUNED = "tuned_cumulative_"
_CLASS = "qtune.profiler.sensitivity_table.SensitivityTable"


def read_rows(table: Any, source: str) -> tuple[list[tuple[str, str, str | None]], bool]:
    """Operator, port and dtype (``None`` if not known) of each entry, the most sensitive first, and
    whether ``tune_bad_case`` chose them.

    ``table``: see ``SensitivityTemplate``. Raises ``QconfigError`` that begins with ``source``.
    """
    tables = list(_tables(table, source))
    tuned = bool(tables) and all(_tuned_column(columns) for columns, _ in tables)
    places: dict[tuple[str, str, str | None], int] = {}
    for columns, rows in tables:
        for place, row in enumerate(rows):
            cells = dict(zip(columns, row, strict=False))
            if tuned and cells[_tuned_column(columns)] is None:
                continue
            dtype = cells.get(_DTYPE)  # the oldest lists have a further metric in its place
            for port in _OLD_PORTS.get(str(cells[_PORT]), (str(cells[_PORT]),)):
                key = (str(cells[_NAME]), port, dtype if isinstance(dtype, str) else None)
                places[key] = min(place, places.get(key, place))
    return sorted(places, key=lambda key: places[key]), tuned


def _tuned_column(columns: Sequence[str]) -> str:
    return next((name for name in columns if name.startswith(_TUNED)), "")


def _tables(table: Any, source: str) -> Iterator[tuple[Sequence[str], Sequence[Sequence[Any]]]]:
    if isinstance(table, (str, os.PathLike)):
        table = _loaded(Path(table), source)
    columns, rows = getattr(table, "columns", None), getattr(table, "rows", None)
    if columns is not None and rows is not None:
        yield columns, rows
    elif isinstance(table, Mapping):
        for part in table.values():
            yield from _tables(part, source)
    elif isinstance(table, (list, tuple)) and table and all(map(_is_row, table)):
        yield _OLD_COLUMNS, table
    elif isinstance(table, (list, tuple)) and not any(map(_is_row, table)):
        for part in table:
            yield from _tables(part, source)
    else:
        raise QconfigError(
            f"{source}: expected a sensitivity table, its list of rows [op_name, sensitive_type, "
            f"...] or the path of a saved one, but got {table!r} (type={type(table).__name__})"
        )


def _is_row(value: Any) -> bool:
    is_list = isinstance(value, (list, tuple)) and len(value) >= 2
    return is_list and all(isinstance(cell, str) for cell in value[:2])


class _SavedTable:
    """What a saved ``SensitivityTable`` is read as: its class belongs to a higher layer."""

    columns: list[str]
    rows: list[list[Any]]

    def __setstate__(self, state: list[Any]) -> None:
        self.columns, self.rows = state[:2]


def _loaded(path: Path, source: str) -> Any:
    if not path.exists():
        raise QconfigError(f"{source}: {path} does not exist")
    if path.suffix != ".pt":
        raise QconfigError(f"{source}: expected the .pt file of a table but got {path}")
    with torch.serialization.safe_globals([(_SavedTable, _CLASS)]):
        return torch.load(path, weights_only=True)
