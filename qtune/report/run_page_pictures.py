"""Pictures of a check: error over the layers, sensitivity of ports, dtypes. SVG as text."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence

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
"""A picture of fewer layers says no more than the table."""
LAYERS, OUTPUTS = "layers", "outputs"
"""As ``AssertionResult.parts`` names them."""
STRUCTURE = ("no_shared_ops", "no_unfused", "qconfig", "on_bpu")
"""Checks whose values are no errors; a curve of them says nothing."""
_DTYPES = ("qint8", "qint16", "qint4", "torch.float32")


def picture(entry: Entry, *, brief: bool = False) -> str:
    """The curve over the layers, bars of the worst ports or outputs; ``""`` where there is none.

    ``brief``: in a few kilobytes.
    """
    layers: Sequence[Entry] = entry["layers"]
    shown = sum(layer["value"] is not None for layer in layers)
    if shown < FEWEST_POINTS or entry["check"] in STRUCTURE:
        return ""
    bad = {layer["name"] for layer in layers if not layer["ok"]}
    limit, measured, said = _limit(entry, bad), entry["measured"], _said(entry, bad)
    if parts_of(entry) != LAYERS:
        worst = sorted(layers, key=badness, reverse=True)[: BRIEF_BARS if brief else MOST_BARS]
        values = {layer["name"]: _value(layer) for layer in worst}
        return bars(values, x_label=measured, limit=limit, bad=bad, desc=said)
    return curve(
        {measured: [_value(layer) for layer in layers]},
        [layer["name"] for layer in layers],
        y_label=measured,
        limit=limit,
        bad=bad,
        desc=said,
        brief=brief,
    )


def _value(layer: Entry) -> float | None:
    return None if layer["value"] is None else as_float(layer["value"])


def _limit(entry: Entry, bad: Collection[str]) -> float | None:
    """The limit on each layer; none where a check failed as a whole (the sum of latencies)."""
    known = bad or entry["ok"]
    return next((as_float(v) for v in entry["limits"].values()), None) if known else None


def least_bytes(entry: Entry, *, brief: bool = False) -> int:
    """About how large the picture is, rather too small: what surely has no room isn't drawn."""
    layers: Sequence[Entry] = entry["layers"]
    count = len(layers)
    if count < FEWEST_POINTS or entry["check"] in STRUCTURE:
        return 0
    letters = sum(len(layer["name"]) for layer in layers) // count
    if parts_of(entry) != LAYERS:
        return min(count, BRIEF_BARS if brief else MOST_BARS) * (2 * letters + 200)
    ticks, dots = (BRIEF_TICKS, BRIEF_DOTS) if brief else (MAX_TICKS, MAX_DOTS)
    names = count // math.ceil(count / ticks) * (letters + min(letters, NAME) + 120)
    return names + min(count, dots) * (letters + 90) + count * 10


def _said(entry: Entry, bad: Collection[str]) -> str:
    """A picture in words."""
    layers: Sequence[Entry] = entry["layers"]
    worst = max(layers, key=badness)
    return (
        f"{len(layers)} {parts_of(entry)}, {len(bad)} beyond the limit ({entry['limit']}); "
        f"the worst is {name(worst['name'])} with {number(worst['value'])}."
    )


def parts_of(entry: Entry) -> str:
    """What the layers of a check are: layers, ports, outputs, patterns."""
    return str(entry.get("parts", LAYERS))


def has_order(entry: Entry) -> bool:
    """Whether the layers of a check stand in order of execution."""
    return parts_of(entry) != OUTPUTS


def dtype_strip(dtypes: Sequence[tuple[str, str]]) -> str:
    """Boxes of (operator, dtype) pairs; a dtype has the same colour for all models."""
    counts = Counter(dtype for _, dtype in dtypes)
    others = [dtype for dtype in sorted(counts) if dtype not in _DTYPES]
    colors = {d: COLORS[i % len(COLORS)] for i, d in enumerate((*_DTYPES, *others)) if d in counts}
    said = ", ".join(f"{count} {dtype}" for dtype, count in counts.most_common())
    return strip(dict(dtypes), colors, name="data type of each operator's result", desc=said)
