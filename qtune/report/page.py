"""Self-contained HTML pages: one template, inline style and SVG, no script needed to read them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import jinja2
from markupsafe import Markup, escape

from qtune.report.drawing import readable

DIGITS = 7
"""Significant digits of numbers in tables."""
MOST_ROWS = 2500
"""Rows of a table at most: a page stays small enough for a browser, whatever the model."""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows (mappings by column name).

    ``bad`` names a bool key that marks a row red. ``numeric`` columns are aligned right, those of
    ``wrap`` may break lines. The texts of the column ``status`` (ok, FAIL, caught) become badges,
    those of ``link`` lead to the section of that title, or of the anchor in ``targets``.
    ``pinned``: the first column stays in view when the table is moved sideways. ``most``: rows
    beyond so many are left out, which is said; ``rest`` says who has them.
    """

    columns: Sequence[str]
    rows: Sequence[Mapping[str, Any]]
    bad: str = ""
    caption: str = ""
    numeric: Sequence[str] = ()
    status: str | None = None
    link: str | None = None
    wrap: Sequence[str] = ()
    pinned: bool = False
    most: int = MOST_ROWS
    rest: str = "the text files have all"
    targets: Mapping[str, str] = field(default_factory=dict)

    @property
    def shown(self) -> Sequence[Mapping[str, Any]]:
        """The rows on the page."""
        return self.rows[: self.most]

    @property
    def note(self) -> str:
        """The caption, and how many rows there are where not all are shown."""
        if len(self.rows) <= self.most:
            return self.caption
        cut = f"he first {self.most} of {len(self.rows)} rows; {self.rest}"
        return f"{self.caption} (t{cut})" if self.caption else f"T{cut}"


@dataclass(frozen=True, slots=True)
class Link:
    """A file beside the page, by its relative path."""

    text: str
    path: str


@dataclass(frozen=True, slots=True)
class Section:
    """A headed part of a page: text paragraphs, facts, tables, and ready SVG pictures.

    ``facts`` are (label, text) pairs whose text is to be copied: a command, a path. ``collapsed``:
    ``None`` for a plain section; else it folds (without a script), at first closed or open.
    ``sections`` may hold ready ``fragment``s. ``status``: a badge before the title. ``anchor``:
    where links find it, if not by its title.
    """

    title: str
    text: Sequence[str] = ()
    tables: Sequence[Table] = ()
    pictures: Sequence[str] = ()
    preformatted: Sequence[str] = ()
    sections: Sequence[Section | Markup] = field(default_factory=tuple)
    collapsed: bool | None = None
    links: Sequence[Link] = ()
    facts: Sequence[tuple[str, str]] = ()
    status: str = ""
    anchor: str = ""


@dataclass(frozen=True, slots=True)
class Tile:
    """A number at the top of the page; ``kind`` is "", "good" or "bad"."""

    value: str
    label: str
    kind: str = ""


def render(
    title: str,
    sections: Sequence[Section | Markup],
    *,
    subtitle: str = "",
    sortable: bool = False,
    tiles: Sequence[Tile] = (),
    note: str = "",
) -> str:
    """Return the page as text; ``note`` is a paragraph below the tiles.

    ``sortable`` adds a small script with which a click on a column head sorts (and again in the
    other direction), and long tables can be searched; the page is complete without it. Empty cells
    stay at the end, NaN counts as the largest.
    """
    template = _environment().get_template("page.html")
    return template.render(
        title=title,
        subtitle=subtitle,
        sections=sections,
        sortable=sortable,
        tiles=tiles,
        note=note,
    )


def fragment(section: Section, level: int = 2) -> Markup:
    """A section as it will be on the page, so that its size is known; ``level`` of its heading."""
    module: Any = _environment().get_template("parts.html").module
    return Markup(module.render_section(section, level))


def anchor(title: str) -> str:
    """The fragment that leads to the section ``title``."""
    return "s-" + re.sub(r"[^\w.-]+", "-", title)


def breakable(text: str) -> Markup:
    """A path or command that may break behind its slashes and colons, also without a style."""
    ready = str(escape(readable(text)))
    return Markup(ready.replace("/", "/<wbr>").replace("::", "::<wbr>"))


def cell_text(value: Any) -> str:
    """A cell's text: floats with 7 significant digits, ``""`` for ``None``.

    >>> cell_text(0.5), cell_text(123456.789), cell_text(1.5e-9), cell_text(None)
    ('0.5000000', '123456.8', '1.500000e-09', '')
    """
    if value is None:
        return ""
    if not isinstance(value, float):
        return readable(str(value))
    if math.isnan(value):
        return "NaN"
    return f"{value:#.{DIGITS}g}" if value != 0 else "0"


def is_odd(value: Any) -> bool:
    """Whether a cell is to be marked: NaN and infinities."""
    return isinstance(value, float) and not math.isfinite(value)


def _cells(table: Table, row: Mapping[str, Any]) -> Markup:
    """The cells of a row; in the template they would take most of the time of a page."""
    return Markup("".join(_cell(table, column, row[column]) for column in table.columns))


def _cell(table: Table, column: str, value: Any) -> str:
    text: str = escape(cell_text(value))
    if column == table.status and value:
        text = f'<span class="badge {escape(str(value).lower())}">{text}</span>'
    elif column == table.link and value:
        target = table.targets.get(str(value)) or anchor(str(value))
        text = f'<a href="#{escape(target)}">{text}</a>'
    elif is_odd(value):
        text = f'<b class="odd">{text}</b>'
    if column in table.numeric:
        return f'<td class="number">{text}</td>\n'
    return f'<td class="wrap">{text}</td>\n' if column in table.wrap else f"<td>{text}</td>\n"


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("qtune.report", "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        finalize=lambda value: readable(value) if type(value) is str else value,
    )
    environment.globals["cells"] = _cells
    environment.filters["anchor"] = anchor
    environment.filters["breakable"] = breakable
    environment.filters["picture"] = Markup  # our own SVG, text in it is escaped by the drawer
    return environment
