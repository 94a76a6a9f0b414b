"""Text tables in the form that the documents print."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tabulate import tabulate

STYLES = {"boxed": "psql", "plain": "simple"}


def format_number(value: Any, digits: int = 7) -> str:
    """A float as the documents print it (7 decimals), "" for ``None``, other values as they are.

    >>> format_number(0.00784044), format_number(None), format_number(3)
    ('0.0078404', '', '3')
    """
    if value is None:
        return ""
    if isinstance(value, float):
        if math.isfinite(value) and value != 0 and abs(value) < 10**-digits:
            return f"{value:.{digits}e}"
        return f"{value:.{digits}f}" if math.isfinite(value) else str(value)
    return str(value)


def text_table(
    rows: Sequence[Mapping[str, Any] | Sequence[Any]],
    columns: Sequence[str],
    *,
    style: str = "boxed",
    index: bool = False,
    digits: int = 7,
    numbers_right: bool = False,
) -> str:
    """Render rows (mappings by column, or sequences) as an aligned table.

    ``boxed`` has borders, ``plain`` underlined headers; ``index`` adds a numbered first column.
    ``digits``: decimals of floats. ``numbers_right``: columns of numbers stand at the right.
    """
    values = [
        [row[c] if isinstance(row, Mapping) else row[i] for i, c in enumerate(columns)]
        for row in rows
    ]
    headers = list(columns)
    if index:
        headers = ["", *headers]
        values = [[i, *row] for i, row in enumerate(values)]
    cells = [[format_number(value, digits) for value in row] for row in values]
    align = [_side(column) for column in zip(*values, strict=True)] if numbers_right else None
    return tabulate(
        cells,
        headers,
        tablefmt=STYLES[style],
        disable_numparse=True,
        colalign=align or None,
    )


def _side(column: Sequence[Any]) -> str:
    """Where a column stands: numbers (and what has none) at the right, all else at the left."""
    known = [value for value in column if value is not None]
    return "right" if known and all(isinstance(v, (int, float)) for v in known) else "left"


def shown_type(name: str) -> str:
    """The qualified name of a class as Python prints the class; that of a function as it is.

    >>> shown_type("torch.nn.modules.conv.Conv2d"), shown_type("torch.add")
    ("<class 'torch.nn.modules.conv.Conv2d'>", 'torch.add')
    """
    is_class = name.rpartition(".")[2][:1].isupper()
    return f"<class '{name}'>" if is_class else name
