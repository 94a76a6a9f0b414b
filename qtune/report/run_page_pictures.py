"""Pictures of a check: error over the layers, sensitivity of ports, dtypes. SVG as text."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from qtune.report.drawing import COLORS
from qtune.report.run_page_values import Entry, as_float, badness, name, number
from qtune.report.svg import (
    BRIEF_DOTS,
    BRIEF_TICKS,
    MAX_DOTS,
    MAX_TICKS,
    NAME,
    bars,
    curve,
    strip,
)

MOST_BARS, BRIEF_BARS = 25, 10
FEWEST_POINTS = 3
"""A curve of fewer layers says no more than the table."""
STRUCTURE = ("no_shared_ops", "no_unfused", "qconfig", "on_bpu")
"""Checks whose values are no errors; a curve of them says nothing."""
_DTYPES = ("qint8", "qint16", "qint4", "torch.float32")


def picture(entry: Entry, *, brief: bool = False) -> str:
    """The curve over the layers, or bars of the worst ports; ``""`` where there is none.

    ``brief``: in a few kilobytes.
    """
    layers: Sequence[Entry] = entry["layers"]
    limit = next((as_float(v) for v in entry["limits"].values()), None)
    bad = {layer["name"] for layer in layers if not layer["ok"]}
    if is_sensitivity(entry) and layers:
        worst = sorted(layers, key=badness, reverse=True)[: BRIEF_BARS if brief else MOST_BARS]
        values = {layer["name"]: as_float(layer["value"]) for layer in worst}
        label, said = entry["measured"], _said(entry, bad)
        return bars(values, x_label=label, limit=limit, bad=bad, desc=said)
    points = [None if layer["value"] is None else as_float(layer["value"]) for layer in layers]
    shown = sum(point is not None for point in points)
    if shown < FEWEST_POINTS or entry["check"] in STRUCTURE:
        return ""
    return curve(
        {entry["measured"]: points},
        [layer["name"] for layer in layers],
        y_label=entry["measured"],
        limit=limit,
        bad=bad,
        desc=_said(entry, bad),
        brief=brief,
    )


def least_bytes(entry: Entry, *, brief: bool = False) -> int:
    """About how large the picture is, rather too small: what surely has no room isn't drawn."""
    layers: Sequence[Entry] = entry["layers"]
    count = len(layers)
    if not count or entry["check"] in STRUCTURE:
        return 0
    letters = sum(len(layer["name"]) for layer in layers) // count
    ticks, dots = (BRIEF_TICKS, BRIEF_DOTS) if brief else (MAX_TICKS, MAX_DOTS)
    if is_sensitivity(entry):
        bars_drawn = min(count, BRIEF_BARS if brief else MOST_BARS)
        return bars_drawn * (2 * letters + 200)
    names = count // max(1, math.ceil(count / ticks)) * (letters + min(letters, NAME) + 120)
    return names + min(count, dots) * (letters + 90) + count * 10


def _said(entry: Entry, bad: set[str]) -> str:
    """A picture in words."""
    layers: Sequence[Entry] = entry["layers"]
    worst = max(layers, key=badness)
    return (
        f"{len(layers)} {entry.get('parts', 'layers')}, {len(bad)} beyond the limit "
        f"({entry['limit']}); the worst is {name(worst['name'])} with {number(worst['value'])}."
    )


def is_sensitivity(entry: Entry) -> bool:
    """Whether the layers of a check are ports, each quantized alone."""
    return str(entry["check"]).startswith("sensitivity")


def dtype_strip(dtypes: Sequence[tuple[str, str]]) -> str:
    """Boxes of (operator, dtype) pairs; a dtype has the same colour for all models."""
    counts = Counter(dtype for _, dtype in dtypes)
    others = [dtype for dtype in sorted(counts) if dtype not in _DTYPES]
    colors = {d: COLORS[i % len(COLORS)] for i, d in enumerate((*_DTYPES, *others)) if d in counts}
    said = ", ".join(f"{count} {dtype}" for dtype, count in counts.most_common())
    return strip(dict(dtypes), colors, name="data type of each operator's result", desc=said)
