"""Static pictures as inline SVG (drawn by matplotlib), for pages that must work without scripts."""

from __future__ import annotations

import io
import math
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, HEIGHT = 9.0, 3.2
MAX_TICKS = 60
FAR = 3.0
RED = "#b3261e"
COLORS = ("#1f5fa8", "#c4561b", "#2d7d46", "#7a4ca0", "#8a6d00", "#b3224b", "#3d7f8f")


def curve(
    series: Mapping[str, Sequence[float | None]],
    labels: Sequence[str],
    *,
    title: str = "",
    y_label: str = "",
    limit: float | None = None,
    log: bool = False,
    bad: Collection[str] = (),
) -> str:
    """One line per series over the layers ``labels`` in order of execution.

    Layers whose name is in ``bad`` are marked red.
    """
    figure, axes = _axes(title, y_label)
    for color, (name, values) in zip(_colors(len(series)), series.items(), strict=True):
        points = [math.nan if v is None or not math.isfinite(v) else v for v in values]
        axes.plot(range(len(points)), points, marker=".", lw=1.3, color=color, label=name)
        marked = [i for i, label in enumerate(labels) if label in bad]
        axes.plot(marked, [points[i] for i in marked], "o", ms=5, color=RED, zorder=3)
    if limit is not None:
        axes.axhline(limit, color=RED, lw=1, ls="--", label=f"limit {limit:g}")
    if log and all(v is None or v > 0 for values in series.values() for v in values):
        axes.set_yscale("log")
    _ticks(axes, labels)
    if len(series) > 1 or limit is not None:
        axes.legend(
            fontsize=8,
            frameon=False,
            ncols=4,
            loc="lower right",
            bbox_to_anchor=(1, 1),  # above the curve, whatever it looks like
            borderaxespad=0.2,
        )
    return _svg(figure)


def bars(
    values: Mapping[str, float | None],
    *,
    title: str = "",
    x_label: str = "",
    limit: float | None = None,
    bad: Collection[str] | None = None,
) -> str:
    """Horizontal bars, in the order given (the first on top).

    Those in ``bad``, by default those above ``limit``, are red. A limit far beyond all bars is
    named in the label, so that the bars can still be told apart.
    """
    names, numbers = list(values), [v or 0.0 for v in values.values()]
    figure, axes = _axes(title, "", height=0.6 + 0.24 * max(len(names), 3))
    shown = [v if math.isfinite(v) else 0.0 for v in numbers]
    if bad is None:
        bad = {n for n, v in zip(names, shown, strict=True) if limit is not None and v > limit}
    axes.barh(range(len(names)), shown, color=[RED if n in bad else COLORS[0] for n in names])
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.invert_yaxis()
    if limit is not None and limit > FAR * max(shown, default=0.0) > 0:
        x_label = f"{x_label} (limit {limit:g})"
    elif limit is not None:
        axes.axvline(limit, color=RED, lw=1, ls="--")
    axes.set_xlabel(x_label, fontsize=8)
    return _svg(figure)


def histogram(
    values: Sequence[float], *, title: str = "", x_label: str = "", bins: int = 40
) -> str:
    """Distribution of finite values."""
    figure, axes = _axes(title, "cases")
    axes.hist([v for v in values if math.isfinite(v)], bins=bins, color=COLORS[0])
    axes.set_xlabel(x_label, fontsize=8)
    return _svg(figure)


def _colors(count: int) -> list[str]:
    return [COLORS[i % len(COLORS)] for i in range(count)]


def _axes(title: str, y_label: str, height: float = HEIGHT) -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure  # slow to import, and no global pyplot state is needed

    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    axes = figure.subplots()
    axes.set_title(title, fontsize=10, loc="left")
    axes.set_ylabel(y_label, fontsize=8)
    axes.tick_params(labelsize=8)
    axes.grid(True, lw=0.3)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return figure, axes


def _ticks(axes: Any, labels: Sequence[str]) -> None:
    step = max(1, math.ceil(len(labels) / MAX_TICKS))
    places = range(0, len(labels), step)
    axes.set_xticks(list(places), [labels[i] for i in places], rotation=90, fontsize=6)


def _svg(figure: Figure) -> str:
    import matplotlib
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        text.set_parse_math(False)  # names of operators may hold dollar signs
    buffer = io.StringIO()
    # text stays text (small, searchable); a fixed salt keeps the ids, so equal data is equal SVG
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "qtune"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    drawn = buffer.getvalue()
    return drawn[drawn.index("<svg") :]
