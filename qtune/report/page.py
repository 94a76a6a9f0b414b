"""Self-contained HTML pages: one template, inline style and SVG, no script needed to read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import jinja2
from markupsafe import Markup

from qtune.report.table import format_number


@dataclass(frozen=True, slots=True)
class Table:
    """Rows (mappings by column name); ``bad`` names a bool key that marks a row red."""

    columns: Sequence[str]
    rows: Sequence[Mapping[str, Any]]
    bad: str = ""
    caption: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    """A headed part of a page: text paragraphs, tables, and ready SVG pictures."""

    title: str
    text: Sequence[str] = ()
    tables: Sequence[Table] = ()
    pictures: Sequence[str] = ()
    preformatted: Sequence[str] = ()
    sections: Sequence[Section] = field(default_factory=tuple)


def render(
    title: str, sections: Sequence[Section], *, subtitle: str = "", sortable: bool = False
) -> str:
    """Return the page as text.

    ``sortable`` adds a small script with which a click on a column head sorts; the page is
    complete without it.
    """
    template = _environment().get_template("page.html")
    return template.render(title=title, subtitle=subtitle, sections=sections, sortable=sortable)


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
    environment.filters["picture"] = Markup  # our own SVG, text in it is escaped by the drawer
    return environment
