"""The tables of ``get_sensitivity_of_nodes``, as the document prints them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

TITLE = "node sensitivity"
DIGITS = 5
_GAP = 2
_LONGEST = 50  # characters of a name; of a longer one the end is shown


def rounded(value: float) -> float:
    """``value`` with 5 decimals, as the document shows.

    A value that this would make 0 keeps 3 digits: an error of 3.2e-07 is not none.
    """
    value = float(value)
    if not math.isfinite(value):
        return value
    short = round(value, DIGITS)
    return short if short or not value else float(f"{value:.2e}")


def table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A title over the width of the table, the columns, a line of dashes, and the rows.

    Columns are aligned at the left, two blanks apart; floats are rounded.
    """
    cells = [[_cell(value) for value in row] for row in (columns, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    width = max(sum(widths) + _GAP * (len(widths) - 1), len(TITLE) + 2)
    lines = [
        (" " * _GAP).join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip()
        for row in cells
    ]
    side = "=" * ((width - len(TITLE)) // 2)  # as many on both sides, as in the document
    return "\n".join([side + TITLE + side, lines[0], "-" * width, *lines[1:]])


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return str(rounded(value))
    text = str(value)
    return text if len(text) <= _LONGEST else "..." + text[3 - _LONGEST :]
