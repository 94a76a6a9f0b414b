"""Box plots of channels: as many as there are, in rows of readable width (onnx_debugger)."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from qtune.onnx_debug import pictures_sheet as on

Array = np.ndarray[Any, Any]

ROW = 128
"""Most channels side by side."""
PAGE = 2048
"""Most channels of one picture."""
_PER_BOX, _LEAST_WIDTH, _HEIGHT, _GAP = 0.11, 7.0, 3.0, 0.55  # inches
_HALF = 0.36  # of a box's width; the boxes are 1 apart


@dataclass(frozen=True, slots=True, eq=False)
class Box:
    """One channel: quartiles, mean, whiskers (the outermost values within 1.5 times the distance of
    the quartiles from them) and ``fliers``, values beyond."""

    low: float
    lower_quartile: float
    median: float
    mean: float
    upper_quartile: float
    high: float
    fliers: tuple[float, ...] = ()


def draw_boxes(path: str | os.PathLike[str], boxes: Sequence[Box], title: str = "") -> list[Path]:
    """Draw one box for each channel and write a PNG; return the paths.

    A red solid line is the median, a blue dashed one the mean, the box reaches from one quartile to
    the other, dots are fliers. Rows of ``ROW`` channels share one scale. More than ``PAGE``
    channels go to several pictures, ``<path>_1.png`` and so on.
    """
    target = Path(path)
    reach = _reach(boxes)
    paths = []
    for page, first in enumerate(range(0, len(boxes), PAGE)):
        place = target if not page else target.with_name(f"{target.stem}_{page}{target.suffix}")
        paths.append(_page(place, boxes[first : first + PAGE], first, reach, title))
    return paths


def _page(
    path: Path, boxes: Sequence[Box], first: int, reach: tuple[float, float], title: str
) -> Path:
    rows = [range(at, min(at + ROW, len(boxes))) for at in range(0, len(boxes), ROW)]
    width = max(_LEAST_WIDTH, _PER_BOX * len(rows[0]))
    height = len(rows) * (_HEIGHT + _GAP) - _GAP
    figure = on.sheet(width, height)
    for index, row in enumerate(rows):
        bottom = height - (index + 1) * _HEIGHT - index * _GAP
        axes = figure.add_axes((0.0, bottom / height, 1.0, _HEIGHT / height))
        _row(axes, [boxes[i] for i in row], first + row.start)
        axes.set_ylim(*reach)
        axes.set_xlim(first + row.start - 0.8, first + row.start + max(len(rows[0]), 4) - 0.2)
        is_last = index == len(rows) - 1
        heading = title if not index else ""
        on.describe(axes, xlabel="channel" if is_last else "", ylabel="value", title=heading)
    return on.save(figure, path)


def _row(axes: Any, boxes: Sequence[Box], first: int) -> None:
    from matplotlib.collections import LineCollection, PolyCollection

    places = list(range(first, first + len(boxes)))
    pairs = list(zip(places, boxes, strict=True))
    corners = [_corners(x, b) for x, b in pairs]
    axes.add_collection(PolyCollection(corners, facecolors="#E8EEF4", edgecolors="black", lw=0.7))
    stems = [[(x, b.upper_quartile), (x, b.high)] for x, b in pairs]
    stems += [[(x, b.lower_quartile), (x, b.low)] for x, b in pairs]
    axes.add_collection(LineCollection(stems, colors="black", linewidths=0.7))
    medians = LineCollection(
        [_level(x, b.median) for x, b in pairs], colors=on.RED, linewidths=1.5, zorder=3
    )
    means = LineCollection(
        [_level(x, b.mean) for x, b in pairs],
        colors=on.BLUE,
        linewidths=1.5,
        linestyles=[(0, (1.4, 0.9))],
        zorder=4,
    )
    axes.add_collection(medians)
    axes.add_collection(means)
    at = [x for x, b in pairs for _ in b.fliers]
    axes.plot(at, [v for b in boxes for v in b.fliers], ".", color=on.GREY, ms=3, zorder=2)
    axes.grid(True, axis="y", color="#DDDDDD", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set_xticks(places[:: 1 if len(places) <= 20 else 8])
    if not first % PAGE:
        on.legend_beside(axes, [medians, means], ["median", "mean"])


def _corners(x: int, box: Box) -> list[tuple[float, float]]:
    low, high = box.lower_quartile, box.upper_quartile
    return [(x - _HALF, low), (x + _HALF, low), (x + _HALF, high), (x - _HALF, high)]


def _level(x: int, value: float) -> list[tuple[float, float]]:
    return [(x - _HALF, value), (x + _HALF, value)]


def _reach(boxes: Sequence[Box]) -> tuple[float, float]:
    """Limits of the scale: all that is drawn, and a little more."""
    ends = [v for b in boxes for v in (b.low, b.high, b.mean, *b.fliers) if math.isfinite(v)]
    low, high = min(ends, default=0.0), max(ends, default=0.0)
    rest = 0.05 * (high - low) or max(abs(high), 1.0) * 0.05
    return low - rest, high + rest
