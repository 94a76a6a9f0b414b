"""Static pictures as inline SVG, for pages that must work without scripts and without network.

A point or bar says its name and value on hovering. Pictures of thousands of operators stay small:
one line per curve, points of their own only for the largest.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from itertools import groupby

from qtune.report.drawing import (
    COLORS,
    LETTER,
    RED,
    SOFT,
    Axis,
    Canvas,
    axis_of,
    brief,
    count_axis,
    shortened,
)

__all__ = ["COLORS", "RED", "bars", "curve", "falloff", "histogram", "strip"]

WIDTH = 900.0
LEFT, RIGHT, TOP = 74.0, 14.0, 34.0
HEIGHT = 210.0
MAX_TICKS = 60
MAX_DOTS = 150
BRIEF_TICKS, BRIEF_DOTS = 24, 20
CELLS = 100
"""Operators with a box of their own in a strip; with more, neighbours of one kind share a box."""
NAME = 34
"""Letters of a name below a curve."""
BAR_NAME = 44
FAR = 3.0
SHARES = (0.9, 0.99)


def curve(
    series: Mapping[str, Sequence[float | None]],
    labels: Sequence[str],
    *,
    title: str = "",
    y_label: str = "",
    x_label: str = "",
    limit: float | None = None,
    log: bool = False,
    bad: Collection[str] = (),
    desc: str = "",
    brief: bool = False,
) -> str:
    """One line per series over the layers ``labels`` in order of execution.

    Layers whose name is in ``bad`` are marked red, and so are NaN and infinities, at the top.
    ``log``: a logarithmic axis, where all values are positive. ``desc``: what one sees on it, in
    words. ``brief``: fewer names and dots, for a picture of a few kilobytes.
    """
    most_ticks, most_dots = (BRIEF_TICKS, BRIEF_DOTS) if brief else (MAX_TICKS, MAX_DOTS)
    step = max(1, math.ceil(len(labels) / most_ticks))
    shown = [shortened(labels[i], NAME) for i in range(0, len(labels), step)]
    below = 16 + max((len(name) for name in shown), default=0) * 9 * LETTER
    named = 18 if x_label else 0
    height = TOP + HEIGHT + below + named
    canvas = Canvas(WIDTH, height, title, name=title or y_label, desc=desc)
    if x_label:
        canvas.text(LEFT, TOP + HEIGHT + below + 10, x_label)
    numbers = [v for values in series.values() for v in values if v is not None]
    is_far = limit is not None and limit > FAR * max(filter(math.isfinite, numbers), default=0) > 0
    if limit is not None and not is_far:
        numbers.append(limit)
    y = axis_of(numbers, TOP + HEIGHT, TOP, log=log)
    x = Axis(0, max(len(labels) - 1, 1), LEFT + 6, WIDTH - RIGHT)
    _rule(canvas, y, y_label)
    for place, name in zip(range(0, len(labels), step), shown, strict=True):
        here, hint = (x.at(place) + 3, TOP + HEIGHT + 8), labels[place]
        canvas.text(*here, name, anchor="end", size=9, turned=True, hint=hint)
    for index, (name, values) in enumerate(series.items()):
        color = COLORS[index % len(COLORS)]
        hints = [f"{label}: " for label in labels]
        _series(canvas, (x, y), values, hints, color, labels, bad, most_dots)
        if len(series) > 1:
            canvas.text(LEFT + 130 * index, TOP - 6, name, color=color, bold=True)
    if limit is not None:
        _limit(canvas, y, limit, is_far=is_far)
    return canvas.svg()


def _limit(canvas: Canvas, y: Axis, limit: float, *, is_far: bool) -> None:
    """The line of a limit; one that is far above all values is only named."""
    if not is_far:
        canvas.line(LEFT, y.at(limit), WIDTH - RIGHT, y.at(limit), RED, dashed=True)
    text = f"limit {limit:g}, far above" if is_far else f"limit {limit:g}"
    canvas.text(WIDTH - RIGHT, TOP - 6, text, anchor="end", color=RED)


def bars(
    values: Mapping[str, float | None],
    *,
    title: str = "",
    x_label: str = "",
    limit: float | None = None,
    bad: Collection[str] | None = None,
    desc: str = "",
) -> str:
    """Horizontal bars, in the order given (the first on top), each with its value.

    Those in ``bad``, by default those above ``limit``, are red, and so are NaN and infinities. A
    limit far beyond all bars is named in the label, so that the bars can still be told apart.
    """
    numbers = {name: 0.0 if value is None else value for name, value in values.items()}
    finite = {name: v if math.isfinite(v) else 0.0 for name, v in numbers.items()}
    if bad is None:
        bad = {name for name, v in finite.items() if limit is not None and v > limit}
    largest = max(finite.values(), default=0.0)
    if limit is not None and limit > FAR * largest > 0:
        x_label, limit = f"{x_label} (limit {limit:g})", None
    names = [shortened(name, BAR_NAME) for name in values]
    left = 12 + max((len(name) for name in names), default=4) * 11 * LETTER
    row, top = 17.0, TOP - 8
    height = top + row * max(len(names), 1)
    canvas = Canvas(WIDTH, height + 36, title, name=title or x_label, desc=desc)
    ends = [*finite.values(), *([] if limit is None else [limit])]
    x = axis_of(ends or [1.0], left, WIDTH - 78, zero=True)
    for tick, text in x.marks():
        canvas.line(x.at(tick), top, x.at(tick), height)
        canvas.text(x.at(tick), height + 14, text, anchor="middle")
    for index, (name, short) in enumerate(zip(values, names, strict=True)):
        here, value = top + row * index, numbers[name]
        color = RED if name in bad or not math.isfinite(value) else COLORS[0]
        start, end = sorted((x.at(0.0), x.at(finite[name])))
        canvas.bar(start, here + 3, (end - start, row - 6), color, f"{name}: {value!r}")
        canvas.text(left - 6, here + 12.5, short, anchor="end", hint=name)
        if values[name] is not None:
            text = "NaN" if math.isnan(value) else brief(value)
            marked = SOFT if math.isfinite(value) else RED
            canvas.text(end + 4, here + 12.5, text, size=10, color=marked)
    if limit is not None:
        canvas.line(x.at(limit), top, x.at(limit), height, RED, dashed=True)
    canvas.text(left, height + 30, x_label)
    return canvas.svg()


def histogram(
    values: Sequence[float],
    *,
    title: str = "",
    x_label: str = "",
    bins: int = 40,
    marks: Mapping[str, float] | None = None,
) -> str:
    """Distribution of finite values; ``marks`` are places on it by name (percentiles)."""
    finite = [v for v in values if math.isfinite(v)]
    canvas = Canvas(WIDTH, TOP + HEIGHT + 40, title)
    x = axis_of(finite, LEFT, WIDTH - RIGHT)
    counts = [0] * bins
    for value in finite:
        place = (x.at(value) - x.start) / (x.end - x.start)
        counts[min(int(place * bins), bins - 1)] += 1
    y = count_axis(counts, TOP + HEIGHT, TOP)
    _rule(canvas, y, "cases")
    for tick, text in x.marks():
        canvas.line(x.at(tick), TOP + HEIGHT, x.at(tick), TOP + HEIGHT + 4, SOFT)
        canvas.text(x.at(tick), TOP + HEIGHT + 17, text, anchor="middle")
    width = (x.end - x.start) / bins
    for index, count in enumerate(counts):
        here = y.at(count)
        hint = f"{count} cases"
        place = x.start + index * width
        canvas.bar(place + 0.5, here, (width - 1, TOP + HEIGHT - here), COLORS[0], hint)
    taken = -math.inf
    for name, value in sorted((marks or {}).items(), key=lambda item: item[1]):
        here = x.at(value)
        canvas.line(here, TOP, here, TOP + HEIGHT, RED, dashed=True)
        if here - taken > 60:
            canvas.text(here, TOP - 6, name, anchor="middle", color=RED, size=10)
            taken = here
    canvas.text(LEFT, TOP + HEIGHT + 34, x_label)
    return canvas.svg()


def strip(
    kinds: Mapping[str, str], colors: Mapping[str, str], *, name: str = "", desc: str = ""
) -> str:
    """What kind each operator is of, as coloured boxes in order of execution, with a legend.

    ``kinds``: kind by operator; ``colors``: a colour for each kind, in the legend's order.
    """
    canvas = Canvas(WIDTH, 66, name=name, desc=desc)
    step, place = WIDTH / max(len(kinds), 1), 0.0
    for kind, names in _boxes(kinds):
        hint = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}, {len(names)} operators"
        gap = 1.0 if step > 4 else 0.0
        width = step * len(names) - gap
        canvas.bar(place, 2, (width, 30), colors[kind], f"{hint}: {kind}")
        place += step * len(names)
    here = 0.0
    for kind, color in colors.items():
        canvas.bar(here, 44, (12, 12), color, kind)
        canvas.text(here + 17, 54, kind, size=12)
        here += 40 + len(kind) * 12 * LETTER
    return canvas.svg()


def _boxes(kinds: Mapping[str, str]) -> list[tuple[str, list[str]]]:
    """(kind, operators) of each box of a strip."""
    if len(kinds) <= CELLS:
        return [(kind, [name]) for name, kind in kinds.items()]
    runs = groupby(kinds.items(), key=lambda item: item[1])
    return [(kind, [name for name, _ in run]) for kind, run in runs]


def falloff(
    values: Sequence[float | None], labels: Sequence[str], *, title: str = "", y_label: str = ""
) -> str:
    """Sorted values over their rank: where a ranking falls off.

    ``values``: largest first; zero and below have no place on the logarithmic axis. Lines show how
    many of the first hold 90 and 99 percent of the sum of the positive values.
    """
    numbers = [v for v in values if v is not None]
    positive = [v for v in numbers if math.isfinite(v) and v > 0]
    canvas = Canvas(WIDTH, TOP + HEIGHT + 42, title)
    y = axis_of(positive, TOP + HEIGHT, TOP, log=True)
    x = Axis(1, max(len(numbers), 2), LEFT + 6, WIDTH - RIGHT, whole=True)
    _rule(canvas, y, y_label)
    for tick in x.ticks():
        canvas.text(x.at(tick), TOP + HEIGHT + 16, f"{tick:.0f}", anchor="middle")
    hints = [f"{i}. {name}: " for i, name in enumerate(labels, 1)]
    shown = [v if not math.isfinite(v) or v > 0 else None for v in numbers]
    places = Axis(0, max(len(numbers) - 1, 1), LEFT + 6, WIDTH - RIGHT)
    _series(canvas, (places, y), shown, hints, COLORS[0], labels, ())
    counts = {share: holders(positive, share) for share in SHARES if positive}
    for count in counts.values():
        canvas.line(x.at(count), TOP, x.at(count), TOP + HEIGHT, COLORS[1], dashed=True)
    for row, (share, count) in enumerate(counts.items()):
        text = f"the first {count} hold {share:.0%} of the sum"
        canvas.text(*_beside(x.at(count), TOP + 14 + 16 * row, text), over=True)
    canvas.text(LEFT, TOP + HEIGHT + 36, f"rank, of {len(numbers)}")
    return canvas.svg()


def holders(values: Sequence[float], share: float) -> int:
    """How many of the first of ``values`` (positive, largest first) hold ``share`` of the sum."""
    goal, held = share * math.fsum(values), 0.0
    for count, value in enumerate(values, 1):
        held += value
        if held >= goal:
            return count
    return len(values)


def _beside(x: float, y: float, text: str) -> tuple[float, float, str]:
    """Where a text beside the line at ``x`` fits."""
    width = len(text) * 11 * LETTER + 6
    return (x + 6 if x + width < WIDTH else x - width), y, text


def _rule(canvas: Canvas, y: Axis, label: str) -> None:
    for tick, text in y.marks():
        canvas.line(LEFT, y.at(tick), WIDTH - RIGHT, y.at(tick))
        canvas.text(LEFT - 6, y.at(tick) + 4, text, anchor="end")
    if label:
        canvas.text(12, y.start / 2 + y.end / 2, label, anchor="middle", turned=True)


def _series(
    canvas: Canvas,
    axes: tuple[Axis, Axis],
    values: Sequence[float | None],
    hints: Sequence[str],
    color: str,
    labels: Sequence[str],
    bad: Collection[str],
    most_dots: int = MAX_DOTS,
) -> None:
    """A line with gaps where there is no value, and dots."""
    x, y = axes
    known = [(i, v) for i, v in enumerate(values) if v is not None and math.isfinite(v)]
    for _, run in groupby(enumerate(known), key=lambda item: item[1][0] - item[0]):
        canvas.path([(x.at(i), y.at(v)) for _, (i, v) in run], color)
    largest = {i for i, _ in sorted(known, key=lambda item: -abs(item[1]))[:most_dots]}
    for place, value in known:
        is_bad = place < len(labels) and labels[place] in bad
        if is_bad or place in largest:
            hint = f"{hints[place]}{value!r}" if place < len(hints) else repr(value)
            here = x.at(place), y.at(value)
            canvas.dot(*here, RED if is_bad else color, hint, radius=4 if is_bad else 2.3)
    odd = [(i, v) for i, v in enumerate(values) if v is not None and not math.isfinite(v)]
    for place, value in odd:
        canvas.dot(x.at(place), TOP - 3, RED, f"{hints[place]}{value!r}", radius=4)
