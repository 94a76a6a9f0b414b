"""Aligned columns of text, cut to the width of a terminal."""

from __future__ import annotations

from collections.abc import Sequence

GAP = "  "
NARROWEST = 12
_DOTS = "..."


def align(
    rows: Sequence[tuple[str, ...]], cut: Sequence[str] = (), room: int | None = None
) -> list[str]:
    """Left-aligned columns, two spaces apart; ``rows[0]`` is the head.

    Where the lines are wider than ``room``, the widest of the columns named in ``cut`` get
    narrower, down to 12 columns each.

    >>> align([("name", "v"), ("a_long_name_of_a_layer", "1")], ["name"], 17)
    ['name            v', 'a_l..._a_layer  1']
    """
    from qtune.testing.result import columns

    widths = [max(columns(row[i]) for row in rows) for i in range(len(rows[0]))]
    narrow = [i for i, name in enumerate(rows[0]) if name in cut]
    while room is not None and sum(widths) + len(GAP) * (len(widths) - 1) > room:
        widest = max(narrow, key=lambda i: widths[i], default=None)
        if widest is None or widths[widest] <= NARROWEST:
            break
        widths[widest] -= 1
    return [
        GAP.join(_fit(cell, width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _fit(text: str, width: int) -> str:
    """``text`` in exactly ``width`` columns; cut in its middle, for both ends of a name count."""
    from qtune.testing.result import columns

    if columns(text) > width:
        begin = (width - len(_DOTS)) // 3
        head, tail = text[:begin], text[begin:]
        while columns(head) > begin:
            head = head[:-1]
        while columns(head) + len(_DOTS) + columns(tail) > width:
            tail = tail[1:]
        text = head + _DOTS + tail
    return text + " " * (width - columns(text))
