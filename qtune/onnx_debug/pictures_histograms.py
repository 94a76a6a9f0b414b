"""Histograms side by side, with the absolute maximum and the threshold marked (onnx_debugger)."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from qtune.onnx_debug import pictures_sheet as on
from qtune.onnx_debug.distribution_counts import Counts

_MOST_BINS = 128
_WIDTH, _HEIGHT = 4.6, 3.6  # inches of one histogram


@dataclass(frozen=True, slots=True, eq=False)
class Panel:
    """One histogram. ``threshold``: the largest one of the tensor, ``None`` if it has none.

    ``is_apart``: it doesn't share its range of values with the other panels.
    """

    title: str
    counts: Counts
    threshold: float | None = None
    is_apart: bool = False


def draw_histograms(path: str | os.PathLike[str], panels: Sequence[Panel], title: str = "") -> Path:
    """Draw ``panels`` side by side and write a PNG; return its path.

    A blue triangle stands at the value of the largest magnitude, a red dashed line at the
    threshold (at its negative too where there are negative values). The scale of the numbers is
    logarithmic: a few values in the tail are what decides about a threshold.
    """
    count = len(panels)
    figure = on.sheet(_WIDTH * count + 0.9 * (count - 1), _HEIGHT)
    pitch = (_WIDTH + 0.9) / figure.get_figwidth()
    first = None
    for index, panel in enumerate(panels):
        place = (index * pitch, 0.0, _WIDTH / figure.get_figwidth(), 1.0)
        axes = figure.add_axes(place, sharex=None if panel.is_apart else first)
        first = first or axes
        _draw(axes, panel)
    figure.suptitle(on.readable(title, 120), y=1.13, fontsize=11, parse_math=False)
    return on.save(figure, path)


def _draw(axes: Any, panel: Panel) -> None:
    counts = panel.counts
    on.describe(axes, xlabel="value", ylabel="number of values", title=panel.title)
    edges, heights = counts.shown(min(_MOST_BINS, max(16, 2 * math.isqrt(counts.total))))
    if not heights.size:
        text = f"NaN or infinite: all {counts.lost}" if counts.lost else "no values"
        axes.text(0.5, 0.5, text, ha="center", transform=axes.transAxes)
        return
    if counts.least == counts.most:  # one value: a bar that can be seen
        half = 0.05 * (max(abs(counts.most), panel.threshold or 0.0) or 1.0)
        edges, heights = np.array([counts.most - half, counts.most + half]), heights[:1]
    axes.stairs(heights, edges, fill=True, color=on.GREY, alpha=0.75)
    axes.set_yscale("log")
    axes.minorticks_off()
    axes.set_ylim(0.5, float(heights.max()) * 2)
    marks = [_triangle(axes, counts.largest)]
    labels = [f"absolute maximum {abs(counts.largest):.6g}"]
    if panel.threshold is not None:
        marks.append(_lines(axes, panel.threshold, both=counts.least < 0))
        labels.append(f"threshold {panel.threshold:.6g}")
    if counts.lost:
        marks.append(axes.plot([], [], linestyle="none")[0])
        labels.append(f"NaN or infinite: {counts.lost}")
    axes.legend(marks, labels, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=2)


def _triangle(axes: Any, value: float) -> Any:
    return axes.plot(
        [value], [0.5], marker="^", markersize=9, color=on.BLUE, linestyle="none", clip_on=False
    )[0]


def _lines(axes: Any, threshold: float, *, both: bool) -> Any:
    for value in (threshold, -threshold) if both else (threshold,):
        line = axes.axvline(value, color=on.RED, linestyle="--", linewidth=1.3)
    return line
