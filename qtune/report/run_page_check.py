"""The part of a run's page about one check: what failed, how to repeat it, where the error is."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from qtune.report.page import MOST_ROWS, Section, Table
from qtune.report.run_page_budget import Variant
from qtune.report.run_page_pictures import STRUCTURE, has_order, least_bytes, parts_of, picture
from qtune.report.run_page_values import (
    BLOCK,
    NAME,
    Entry,
    badness,
    clipped,
    name,
    number,
    percent,
    short_test,
)

COLUMNS = (
    "name", "value", "found", "dtype", "scale", "shape", "differing", "saturated", "source",
)  # fmt: skip
_NUMERIC = ("value", "scale", "differing", "saturated")
WORST = 10
_MOST_OPEN = 12
"""A longer table of a failed check is folded; its worst rows stand above it."""
_ROW = 130
"""Bytes that a row surely needs."""
REST = "the JSON has all"
"""Who has what a page leaves out."""


def variants(entry: Entry) -> list[Variant]:
    """Whole; with a small picture and the worst rows; with the worst rows; with neither."""
    count = len(entry["layers"])
    few, all_rows = _ROW * min(count, WORST), _ROW * min(count, MOST_ROWS)
    return [
        Variant(partial(check_section, entry), least_bytes(entry) + all_rows),
        Variant(partial(check_section, entry, rows=WORST), least_bytes(entry, brief=True) + few),
        Variant(partial(check_section, entry, rows=WORST, drawn=False), few),
        Variant(partial(check_section, entry, rows=0, drawn=False)),
    ]


def check_section(entry: Entry, *, rows: int | None = None, drawn: bool = True) -> Section:
    """One check; open if it failed. ``rows``: only so many of the worst layers."""
    svg = picture(entry, brief=rows is not None) if drawn else ""
    return Section(
        title(entry),
        _text(entry),
        pictures=[svg] if svg else [],
        preformatted=[clipped(entry["table"], BLOCK)] if entry["table"] else [],
        sections=_whole(entry) if rows is None else _worst(entry, rows),
        collapsed=True if entry["ok"] else None,
        facts=_facts(entry),
        status=entry["mark"],
    )


def title(entry: Entry) -> str:
    """``Consistency: COSINE 0.9, limit >= 0.8 (test_head)``."""
    words = str(entry["check"]).replace("_", " ")
    kind = f"Structure: {words}" if entry["check"] in STRUCTURE else words.capitalize()
    found = f"{kind}: {entry['got']}, limit {entry['limit']}"
    return f"{clipped(found, 600)} ({short_test(entry['test'])})"


def _text(entry: Entry) -> list[str]:
    """Headline and first bad layer of a failed check, and what to do."""
    lines = [] if entry["ok"] else [entry["headline"]]
    bad = [layer for layer in entry["layers"] if not layer["ok"]]
    if bad and has_order(entry):
        where = f" ({bad[0]['source']})" if bad[0].get("source") else ""
        one = parts_of(entry).removesuffix("s")
        lines.append(f"First bad {one} in order of execution: {bad[0]['name']}{where}.")
    return [clipped(line) for line in (*lines, entry["advice"]) if line]


def _facts(entry: Entry) -> list[tuple[str, str]]:
    """What is to be copied, and every number that was measured."""
    failed = not entry["ok"]
    numbers = ", ".join(f"{key} = {number(v) or 'n/a'}" for key, v in entry["metrics"].items())
    facts = {
        "Run again": entry["rerun"] if failed else "",
        "Test": entry["test"],
        "Artefact": entry["artefact"] if failed else "",
        "Measured": numbers,
        "Baseline": entry.get("baseline", ""),
    }
    return [(label, clipped(str(text))) for label, text in facts.items() if text]


def _worst(entry: Entry, rows: int) -> list[Section]:
    """The worst layers only."""
    layers: Sequence[Entry] = entry["layers"]
    shown = sorted(layers, key=badness, reverse=True)[:rows]
    heading = f"The worst {len(shown)} of {len(layers)} {parts_of(entry)}"
    return [Section(heading, tables=[_table(entry, shown)], collapsed=False)] if shown else []


def _whole(entry: Entry) -> list[Section]:
    """All layers, folded if there are many; then the worst of a failed check stand above."""
    layers: Sequence[Entry] = entry["layers"]
    bad = sum(not layer["ok"] for layer in layers)
    long = bool(bad) and len(layers) > _MOST_OPEN
    above = _worst(entry, min(WORST, bad)) if long else []
    order = ", in order of execution" if has_order(entry) else ""
    heading = f"{len(layers)} {parts_of(entry)}, {bad} beyond the limit{order}"
    whole = Section(heading, tables=[_table(entry, layers)], collapsed=long)
    return [*above, whole] if layers else []


def _table(entry: Entry, layers: Sequence[Entry]) -> Table:
    rows = [_row(layer) for layer in layers]
    columns = [c for c in COLUMNS if any(row[c] != "" for row in rows)]
    caption = clipped(str(entry["measured"]), NAME)
    return Table(
        columns,
        rows,
        bad="bad",
        caption=caption,
        numeric=_NUMERIC,
        wrap=("name", "found"),
        rest=REST,
    )


def _row(layer: Entry) -> dict[str, Any]:
    shape = "" if layer["shape"] is None else "×".join(map(str, layer["shape"])) or "scalar"
    return {
        "name": name(layer["name"]),
        "source": name(layer.get("source", "")),
        "value": number(layer["value"]),
        "found": clipped(layer.get("found", ""), 600),
        "dtype": name(layer["dtype"]),
        "scale": number(layer["scale"]),
        "shape": shape,
        "differing": percent(layer["differing"]),
        "saturated": percent(layer["saturated"]),
        "bad": not layer["ok"],
    }
