"""Curves over the nodes of a model: accumulated errors, and the figure of sensitivity_analysis."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from qtune.errors import ArgumentError
from qtune.onnx_debug import pictures_sheet as on

Values = Sequence[float | None]

_HEIGHT = 4.5  # inches of the axes
_MOST_MARKED = 80  # points up to which each is marked


def draw_curves(
    path: str | os.PathLike[str],
    ticks: Sequence[str],
    curves: Mapping[str, Values],
    ylabel: str,
    title: str = "",
) -> Path:
    """Draw one curve per label over the names ``ticks``, and write a PNG; return its path.

    Each of ``curves`` has one value per tick, ``None`` leaves a gap. An infinite value (the SQNR of
    equal tensors) is a triangle on the upper or lower edge, NaN a star on the lower one.
    """
    figure = on.sheet(on.width_for(len(ticks)), _HEIGHT)
    axes = on.one_axes(figure)
    lines = []
    for index, (label, given) in enumerate(curves.items()):
        values = _numbers(given, ticks, label)
        (line,) = axes.plot(
            range(len(ticks)),
            _finite(values),
            color=on.PALETTE[index % len(on.PALETTE)],
            linestyle=on.STYLES[index // len(on.PALETTE) % len(on.STYLES)],
            marker=on.MARKERS[index % len(on.MARKERS)] if len(ticks) <= _MOST_MARKED else None,
            markersize=4,
            linewidth=1.4,
        )
        _not_finite(axes, given, line.get_color())
        lines.append(line)
    _frame(axes, ticks, ylabel, title)
    on.legend_beside(axes, lines, list(curves))
    return on.save(figure, path)


def draw_sensitivity(
    path: str | os.PathLike[str],
    ticks: Sequence[str],
    only_current: Values,
    freed: Values,
    ylabel: str,
    *,
    baseline: float = 1.0,
    qtype: str = "float32",
    title: str = "sensitivity analysis",
) -> Path:
    """Draw the figure of sensitivity_analysis (onnx_debugger), and write a PNG; return its path.

    ``ticks``: ``none``, then the sensitive nodes. ``only_current``: only this node is quantized
    (green x). ``freed``: all are but this node and those before it (red line); at ``none`` it is
    the calibrated model. ``qtype``: what those nodes have instead of their grid. ``baseline``: what
    the metric gives for the float model against itself (blue dashed line; none where it is
    infinite). ``None`` leaves a point out.
    """
    figure = on.sheet(on.width_for(len(ticks)), _HEIGHT)
    axes = on.one_axes(figure)
    shown: dict[str, Any] = {}
    if math.isfinite(baseline):
        shown["baseline"] = axes.axhline(baseline, color=on.BLUE, linestyle="--", linewidth=1.4)
    alone = _numbers(only_current, ticks, "only_current")
    both = _numbers(freed, ticks, "freed")
    places = list(range(len(ticks)))
    shown["only quantize current node"] = axes.plot(
        places, _finite(alone), color=on.GREEN, linestyle="none", marker="x", markersize=7
    )[0]
    shown[f"{qtype}: current node and all before"] = axes.plot(
        places,
        _finite(both),
        color=on.RED,
        linestyle="-",
        linewidth=1.6,
        marker="." if len(ticks) <= _MOST_MARKED else None,  # a line of one point is none
    )[0]
    _not_finite(axes, only_current, on.GREEN)
    _not_finite(axes, freed, on.RED)
    _frame(axes, ticks, ylabel, title)
    on.legend_beside(axes, list(shown.values()), list(shown))
    return on.save(figure, path)


def _numbers(values: Values, ticks: Sequence[str], label: str) -> list[float]:
    if len(values) != len(ticks):
        raise ArgumentError(f"curve {label!r}: {len(values)} values for {len(ticks)} names")
    return [math.nan if value is None else float(value) for value in values]


def _finite(values: Sequence[float]) -> list[float]:
    return [value if math.isfinite(value) else math.nan for value in values]


def _not_finite(axes: Any, values: Values, color: Any) -> None:
    """Marks on the edges: triangles where infinite values are, stars where NaN is."""
    known = {place: value for place, value in enumerate(values) if value is not None}
    for edge, marker, wanted in ((1.0, "^", "inf"), (0.0, "v", "-inf"), (0.0, "*", "nan")):
        at = [place for place, value in known.items() if str(float(value)) == wanted]
        if at:
            axes.plot(
                at,
                [edge] * len(at),
                color=color,
                linestyle="none",
                marker=marker,
                markersize=5,
                transform=axes.get_xaxis_transform(),
                clip_on=False,
            )


def _frame(axes: Any, ticks: Sequence[str], ylabel: str, title: str) -> None:
    on.name_ticks(axes, tuple(ticks))
    on.describe(axes, xlabel="node", ylabel=ylabel, title=title)
    axes.grid(True, color="#DDDDDD", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.ticklabel_format(axis="y", useOffset=False)
