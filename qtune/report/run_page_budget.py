"""How a page stays below its size: parts are rendered in order of importance while there is room.

Each part comes in variants, from whole to short; the first that fits is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from markupsafe import Markup

from qtune.report.page import Section, fragment

PAGE_BYTES = 5_000_000
"""A page about a run is smaller than this, whatever the run."""
_LEAST_ROW = 60
"""Bytes of a table row at least."""
_BETWEEN = 8
"""Bytes between two parts at most."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A way to show a part; ``least``: bytes it surely needs, so that it isn't tried in vain."""

    make: Callable[[], Section]
    least: int = 0


@dataclass(frozen=True, slots=True)
class Fitted:
    """A ready part, and which variant it is; ``text`` is empty if none fitted."""

    text: Markup
    variant: int


class Budget:
    """The bytes that are left of a page."""

    def __init__(self, size: int) -> None:
        self.left = size

    def fit(self, variants: Sequence[Variant], room: int, level: int = 2) -> Fitted:
        """The first variant of at most ``room`` bytes, which are then spent."""
        room = min(room, self.left)
        for index, variant in enumerate(variants):
            if variant.least > room:
                continue
            text = fragment(variant.make(), level)
            size = len(text.encode()) + _BETWEEN
            if size <= room:
                self.left -= size
                return Fitted(text, index)
        return Fitted(Markup(), len(variants))

    def rows(self, make: Callable[[int], Section], count: int, room: int) -> Fitted:
        """A part with a table of ``count`` rows: with half of them, a quarter, none, to fit."""
        sizes = [count >> shift for shift in range(count.bit_length() + 1)]
        return self.fit([Variant(partial(make, n), n * _LEAST_ROW) for n in sizes], room)
