"""The range of each channel beside its threshold, and what the grid costs it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from qtune.onnx_debug import pictures_sheet as on

_PER_CHANNEL, _LEAST_WIDTH, _MOST_WIDTH = 0.11, 7.0, 16.0  # inches
_TOP, _BOTTOM, _GAP = 3.2, 2.0, 0.7


@dataclass(frozen=True, slots=True, eq=False)
class Ranges:
    """Values by channel. ``thresholds``: ``None`` for a tensor without a grid of its own."""

    least: Sequence[float]
    most: Sequence[float]
    sqnr_db: Sequence[float]
    thresholds: Sequence[float] | None = None


def draw_ranges(path: str | os.PathLike[str], ranges: Ranges, title: str, error: str) -> Path:
    """Draw least and largest value, thresholds (red dashed) and SQNR of channels; write a PNG.

    ``error``: what the SQNR is of. An infinite one (no error at all) has no point.
    """
    count = len(ranges.least)
    width = min(max(_LEAST_WIDTH, _PER_CHANNEL * count), _MOST_WIDTH)
    height = _TOP + _GAP + _BOTTOM
    figure = on.sheet(width, height)
    top = figure.add_axes((0.0, (_BOTTOM + _GAP) / height, 1.0, _TOP / height))
    _draw_values(top, ranges)
    on.describe(top, ylabel="value", title=title)
    below = figure.add_axes((0.0, 0.0, 1.0, _BOTTOM / height), sharex=top)
    sqnr = np.where(np.isfinite(ranges.sqnr_db), ranges.sqnr_db, np.nan)
    below.plot(range(count), sqnr, ".", color=on.GREEN, markersize=5)
    below.grid(True, color="#DDDDDD", linewidth=0.6)
    on.describe(below, xlabel="channel", ylabel=error)
    return on.save(figure, path)


def _draw_values(axes: Any, ranges: Ranges) -> None:
    edges = np.arange(len(ranges.least) + 1) - 0.5
    band = axes.stairs(
        ranges.most, edges, baseline=np.asarray(ranges.least), fill=True, color=on.BLUE, alpha=0.45
    )
    shown, labels = [band], ["least to largest value"]
    if ranges.thresholds is not None:
        for sign in (1.0, -1.0):
            line = axes.stairs(
                np.multiply(ranges.thresholds, sign),
                edges,
                baseline=None,
                color=on.RED,
                linestyle="--",
                linewidth=1.2,
            )
        shown.append(line)
        labels.append("threshold")
    axes.use_sticky_edges = False  # a margin below the lowest threshold, too
    axes.autoscale_view()
    axes.set_xlim(edges[0] - 0.2, edges[-1] + 0.2)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid(True, axis="y", color="#DDDDDD", linewidth=0.6)
    axes.set_axisbelow(True)
    on.legend_beside(axes, shown, labels)
