"""What pictures are made of: an SVG canvas in pixels, axes with round numbers, shortened names."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

INK, SOFT, GRID = "#1b1f24", "#57606a", "#e4e8ec"
RED = "#b3261e"
COLORS = ("#1f5fa8", "#c4561b", "#2d7d46", "#7a4ca0", "#8a6d00", "#b3224b", "#3d7f8f")
LETTER = 0.56
"""Width of an average letter, in font sizes."""
_CONTROLS = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"} | {127: 0x2421}
DECADES = 14
"""A logarithmic axis shows at most so many powers of ten below its largest value."""


@dataclass(frozen=True, slots=True)
class Axis:
    """Values from ``low`` to ``high`` onto pixels from ``start`` to ``end``.

    ``whole``: they are counts, so the ticks are whole numbers.
    """

    low: float
    high: float
    start: float
    end: float
    log: bool = False
    whole: bool = False

    def at(self, value: float) -> float:
        """The pixel of ``value``; what lies beyond the axis comes to its end."""
        value = min(max(value, self.low), self.high)
        if self.log:
            part = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            # halves, so that the largest floats do not overflow
            part = (value / 2 - self.low / 2) / (self.high / 2 - self.low / 2)
        return self.start + part * (self.end - self.start)

    def ticks(self) -> list[float]:
        """Round numbers on the axis: 1, 2 or 5 times a power of ten, or powers of ten."""
        if self.log:
            return _powers(self.low, self.high)
        return _steps(self.low, self.high, least=1.0 if self.whole else 0.0)

    def marks(self) -> list[tuple[float, str]]:
        """The ticks and their texts, in as many digits as tell them apart."""
        ticks = self.ticks()
        texts = [brief(tick) for tick in ticks]
        for digits in range(5, 18):
            if len(set(texts)) == len(ticks):
                break
            texts = [f"{tick:.{digits}g}" for tick in ticks]
        return list(zip(ticks, texts, strict=True))


def axis_of(
    values: Sequence[float], start: float, end: float, *, log: bool = False, zero: bool = False
) -> Axis:
    """The axis of finite ``values``, with ``zero`` on it if asked; logarithmic where it can be."""
    known = [value for value in values if math.isfinite(value)]
    positive = [value for value in known if value > 0]
    if log and positive and len(positive) == len(known):
        high = max(positive)
        low = max(min(positive), high * 10.0**-DECADES)
        return Axis(low / 1.3, high * 1.3, start, end, log=True)
    low, high = (min(known), max(known)) if known else (0.0, 1.0)
    if zero:
        low, high = min(low, 0.0), max(high, 0.0)
    middle, half = low / 2 + high / 2, high / 2 - low / 2
    if half <= abs(middle) * 1e-12:
        half = abs(middle) * 0.05 or 0.5
        low, high = middle - half, middle + half
    return Axis(low, high, start, end)


def count_axis(counts: Sequence[int], start: float, end: float) -> Axis:
    """The axis of counts, from 0 on."""
    return Axis(0, max([1, *counts]), start, end, whole=True)


def _steps(low: float, high: float, least: float = 0.0) -> list[float]:
    """Multiples of a round number, which is at least ``least``."""
    span = high / 6 - low / 6
    power = 10.0 ** math.floor(math.log10(span)) if span > 0 else 1.0
    step = next((n * power for n in (1, 2, 5, 10) if n * power >= span), span)
    step = max(step, least)
    if step == 0 or not math.isfinite(step):
        return [low, high]
    first = math.ceil(low / step - 1e-9)
    return [n * step for n in range(first, first + 14) if n * step <= high + step * 1e-9]


def _powers(low: float, high: float) -> list[float]:
    first, last = math.ceil(math.log10(low)), math.floor(math.log10(high))
    every = max(1, math.ceil((last - first + 1) / 7))
    found = [10.0**n for n in range(first, last + 1, every)]
    return found if len(found) > 1 else [low * 1.3, *found, high / 1.3]


def brief(value: float) -> str:
    """A number for a picture: four significant digits.

    >>> brief(0.000123456), brief(2.0)
    ('0.0001235', '2')
    """
    return f"{value:.4g}"


def readable(text: str) -> str:
    """``text`` for a page: control characters as their symbols, lone surrogates as escapes.

    >>> readable("a\\x1b[31m"), readable("line\\n")
    ('a␛[31m', 'line\\n')
    """
    if text.isascii() and text.isprintable():
        return text
    return text.translate(_CONTROLS).encode("utf-8", "backslashreplace").decode("utf-8")


def shortened(name: str, most: int) -> str:
    """``name`` in at most ``most`` letters: the middle goes, as the ends tell operators apart.

    >>> shortened("backbone.layer1.conv", 11)
    'backb….conv'
    """
    if len(name) <= most:
        return name
    kept = most - 1
    return f"{name[: kept // 2]}…{name[len(name) - (kept - kept // 2) :]}"


class Canvas:
    """Collects the elements of one picture; text in it is escaped.

    ``title`` is written on top; ``name`` (by default the title) and ``desc`` are for those who
    can't see it.
    """

    def __init__(
        self, width: float, height: float, title: str = "", *, name: str = "", desc: str = ""
    ) -> None:
        self.width = width
        self.height = height
        self._parts = [
            f'<svg viewBox="0 0 {width:g} {height:g}" role="img" '
            'font-family="system-ui, sans-serif" font-size="11">'
        ]
        for tag, text in (("title", name or title), ("desc", desc)):
            if text:
                self._parts.append(f"<{tag}>{_text(text)}</{tag}>")
        if title:
            self.text(0, 14, title, size=13, color=INK, bold=True)

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        anchor: str = "start",
        size: float = 11,
        color: str = SOFT,
        bold: bool = False,
        turned: bool = False,
        hint: str = "",
        over: bool = False,
    ) -> None:
        """Write ``text``; ``anchor``: start, middle, end; ``turned``: upwards.

        ``over``: with a white edge, as lines lie below it.
        """
        extra = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if turned else ""
        extra += ' font-weight="600"' if bold else ""
        extra += ' paint-order="stroke" stroke="#fff" stroke-width="4"' if over else ""
        inside = _text(text) + (f"<title>{_text(hint)}</title>" if hint else "")
        self._parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size:g}" '
            f'fill="{color}"{extra}>{inside}</text>'
        )

    def line(
        self, x1: float, y1: float, x2: float, y2: float, color: str = GRID, *, dashed: bool = False
    ) -> None:
        """A straight line."""
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self._parts.append(
            f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" '
            f'stroke="{color}"{dash}/>'
        )

    def path(self, points: Sequence[tuple[float, float]], color: str) -> None:
        """A line through ``points``."""
        places = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self._parts.append(
            f'<polyline points="{places}" fill="none" stroke="{color}" stroke-width="1.6" '
            'stroke-linejoin="round"/>'
        )

    def dot(self, x: float, y: float, color: str, hint: str, *, radius: float = 2.3) -> None:
        """A point that says ``hint`` on hovering."""
        self._parts.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}" fill="{color}">'
            f"<title>{_text(hint)}</title></circle>"
        )

    def bar(self, x: float, y: float, size: tuple[float, float], color: str, hint: str) -> None:
        """A filled rectangle of ``size`` (width, height)."""
        width, height = size
        self._parts.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 0):.1f}" '
            f'height="{max(height, 0):.1f}" fill="{color}"><title>{_text(hint)}</title></rect>'
        )

    def svg(self) -> str:
        """The picture."""
        return "".join([*self._parts, "</svg>"])


def _text(text: str) -> str:
    return escape(readable(text))
