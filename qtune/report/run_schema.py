"""The form of a run's data (``--qtune-json``): a published JSON Schema, and its page."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from importlib.resources import files
from typing import Any

_FILE = "schemas/run.schema.json"
_PLAIN = ("number", "number_or_null", "plain")
"""Definitions that are values, not objects with fields."""


def run_schema() -> dict[str, Any]:
    """The schema (JSON Schema, draft 2020-12) as containers."""
    text = files("qtune.report").joinpath(_FILE).read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def markdown() -> str:
    """A table of fields for every object of the form, as docs/reports.md has it."""
    schema = run_schema()
    parts = [("The whole", schema)]
    parts += [(f"`{name}`", part) for name, part in schema["$defs"].items() if name not in _PLAIN]
    return "\n\n".join(_table(title, part) for title, part in parts)


def _table(title: str, part: Mapping[str, Any]) -> str:
    rows = [("field", "type", "meaning"), ("---",) * 3, *_rows("", part)]
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([f"**{title}**: {part['description']}", "", *lines])


def _rows(start: str, part: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    for name, field in part["properties"].items():
        described = str(field.get("description", "")) or "See its table."
        yield f"`{start}{name}`", _type(field), described
        inner = field.get("items", field)
        if "properties" in inner:
            yield from _rows(f"{start}{name}{'[]' if 'items' in field else ''}.", inner)


def _type(field: Mapping[str, Any]) -> str:
    """The type of a field in words."""
    if "$ref" in field:
        name = field["$ref"].rpartition("/")[2]
        return "number or null" if name == "number_or_null" else name.replace("_", " ")
    if "enum" in field:
        return ", ".join(f"`{value}`" for value in field["enum"])
    if "const" in field:
        return f"{field['const']}"
    kinds = field["type"] if isinstance(field["type"], list) else [field["type"]]
    text = " or ".join(kinds)
    items = field.get("items", {})
    if "$ref" in items or "type" in items:
        return f"{text} of {_type(items)}"
    return text
