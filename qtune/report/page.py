"""Self-contained HTML pages: one template, inline style and SVG, no script needed to read them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import jinja2
from markupsafe import Markup

from qtune.report.table import format_number


@dataclass(frozen=True, slots=True)
class Table:
    """Rows (mappings by column name).

    ``bad`` names a bool key that marks a row red. ``numeric`` columns are aligned right, those of
    ``wrap`` may break lines. The texts of the column ``status`` (ok, FAIL, caught) become badges,
    those of ``link`` lead to the section of that title.
    """

    columns: Sequence[str]
    rows: Sequence[Mapping[str, Any]]
    bad: str = ""
    caption: str = ""
    numeric: Sequence[str] = ()
    status: str | None = None
    link: str | None = None
    wrap: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Chip:
    """A small coloured label: ``kind`` decides the colour, ``hint`` is shown on hovering."""

    text: str
    kind: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    """A headed part of a page: text paragraphs, chips, tables, and ready SVG pictures.

    ``collapsed``: ``None`` for a plain section; else it folds (without a script), at first closed
    or open.
    """

    title: str
    text: Sequence[str] = ()
    tables: Sequence[Table] = ()
    pictures: Sequence[str] = ()
    preformatted: Sequence[str] = ()
    sections: Sequence[Section] = field(default_factory=tuple)
    chips: Sequence[Chip] = ()
    collapsed: bool | None = None


@dataclass(frozen=True, slots=True)
class Tile:
    """A number at the top of the page; ``kind`` is "", "good" or "bad"."""

    value: str
    label: str
    kind: str = ""


def render(
    title: str,
    sections: Sequence[Section],
    *,
    subtitle: str = "",
    sortable: bool = False,
    tiles: Sequence[Tile] = (),
) -> str:
    """Return the page as text.

    ``sortable`` adds a small script with which a click on a column head sorts; the page is
    complete without it.
    """
    template = _environment().get_template("page.html")
    return template.render(
        title=title, subtitle=subtitle, sections=sections, sortable=sortable, tiles=tiles
    )


def anchor(title: str) -> str:
    """The fragment that leads to the section ``title``."""
    return "s-" + re.sub(r"[^\w.-]+", "-", title)


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("qtune.report", "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["number"] = format_number
    environment.filters["anchor"] = anchor
    environment.filters["picture"] = Markup  # our own SVG, text in it is escaped by the drawer
    return environment
