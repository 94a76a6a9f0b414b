"""The sheet all pictures are drawn on: size, text, colours, and how it becomes a PNG.

matplotlib is used through its objects alone (no pyplot), so neither a back end nor a setting of the
user's changes.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from qtune.errors import RunError
from qtune.report.files import atomic_path

BLUE, RED, GREEN, GREY = "#0077BB", "#CC3311", "#009988", "#7F7F7F"
PALETTE = (BLUE, RED, GREEN, "#EE7733", "#33BBEE", "#EE3377", "#000000")
"""Tol's vibrant colours, which the colour-blind can tell apart, and black."""
STYLES = ("-", "--", "-.", ":")
MARKERS = "osD^vP*X"

DPI = 100
MOST_TICKS = 150
"""Names along an axis; of more, evenly spaced ones are written, so that the whole is seen."""
_PER_TICK, _LEAST_WIDTH = 0.17, 7.0  # inches: one rotated line of 8 points, and a page
_LONGEST = 60  # characters of a name


def sheet(width: float, height: float) -> Any:
    """An empty ``matplotlib.figure.Figure`` of that size in inches, for the axes alone.

    ``save`` makes room around them for whatever stands there, such as long names.

    Raises ``RunError`` naming the extra where matplotlib is missing.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise RunError(
            "the pictures of the ONNX debugger need the package matplotlib: install qtune[onnx]"
        ) from None
    figure = Figure(figsize=(width, height), dpi=DPI)
    FigureCanvasAgg(figure)
    return figure


def save(figure: Any, path: str | os.PathLike[str]) -> Path:
    """Write the figure as PNG, whole or not at all; nothing that it shows is cut off."""
    with atomic_path(path) as partial:
        figure.savefig(partial, format="png", dpi=DPI, bbox_inches="tight", pad_inches=0.15)
    return Path(path)


def one_axes(figure: Any) -> Any:
    """Axes as large as the sheet."""
    return figure.add_axes((0.0, 0.0, 1.0, 1.0))


def width_for(count: int) -> float:
    """Inches in which ``count`` rotated names are readable side by side."""
    return max(_LEAST_WIDTH, _PER_TICK * min(count, MOST_TICKS))


def name_ticks(axes: Any, names: list[str] | tuple[str, ...]) -> None:
    """Write ``names`` upright below the positions 0, 1, 2, ... of the x axis; always both ends."""
    step = -(-len(names) // MOST_TICKS) or 1
    at = list(range(len(names) - 1, -1, -step))[::-1]
    if at and at[0]:
        at[0] = 0
    axes.set_xticks(at, [readable(names[i]) for i in at], rotation=90, fontsize=8, parse_math=False)
    axes.set_xlim(-0.6, max(len(names), 1) - 0.4)


def describe(axes: Any, *, xlabel: str = "", ylabel: str = "", title: str = "") -> None:
    """Labels and title; a ``$`` of a name is no formula."""
    axes.set_xlabel(readable(xlabel), parse_math=False)
    axes.set_ylabel(readable(ylabel), parse_math=False)
    # a place for the title saves matplotlib the search for one
    axes.set_title(readable(title, 120), y=1.0, parse_math=False, fontsize=10)


def legend_beside(axes: Any, handles: list[Any], labels: list[str]) -> None:
    """A legend right of the axes, in as many columns as its length asks for."""
    made = axes.legend(
        handles,
        [readable(label) for label in labels],
        loc="upper left",
        bbox_to_anchor=(1.01, 1.0),
        borderaxespad=0.0,
        fontsize=8,
        ncols=1 + len(labels) // 40,
    )
    for text in made.get_texts():
        text.set_parse_math(False)


def readable(text: str, most: int = _LONGEST) -> str:
    """``text`` as the font can write it; the middle of a long one is left out.

    Characters that are not Latin are written as their escapes (``\\u4e2d``).

    >>> readable("/model/" + "block/" * 20 + "Conv", 30)
    '/model/block/b...ck/block/Conv'
    """
    plain = "".join(c if c.isprintable() and ord(c) < 0x180 else _escaped(c) for c in text)
    if len(plain) <= most:
        return plain
    front = (most - 3) // 2 + 1
    return f"{plain[:front]}...{plain[front + 3 - most :]}"


def _escaped(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")
