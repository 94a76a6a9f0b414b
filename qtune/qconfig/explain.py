"""The decisions of ``resolve`` as text."""

from __future__ import annotations

from qtune.qconfig.plan import Resolution
from qtune.report.table import text_table

COLUMNS = ("Module Name", "Port", "asked", "given", "rule", "reason")


MOST_NAMED = 5
"""How many rules or ports one warning names."""


def surprises(resolution: Resolution) -> list[str]:
    """What the user asked for and did not get, as warnings: one text for each kind.

    Rules that decided nothing (with close names), and dtypes that the march does not take. All of
    them stand in :func:`explain`; a warning names the first few.
    """
    corrected = [
        f"{d.name} {d.port}: asked {d.asked}, given {d.given}: {d.reason}"
        for d in resolution.corrections
    ]
    return [
        f"{len(lines)} {head}: {_first(lines)}"
        for head, lines in (
            ("rule(s) of the qconfig decided nothing", list(resolution.unmatched_rules)),
            ("dtype(s) are not the asked ones", corrected),
        )
        if lines
    ]


def _first(lines: list[str]) -> str:
    more = len(lines) - MOST_NAMED
    tail = f"; and {more} more (see model_check_result.txt)" if more > 0 else ""
    return "; ".join(lines[:MOST_NAMED]) + tail


def explain(resolution: Resolution) -> str:
    """A table of all decisions, then corrected dtypes, rules that matched nothing, refusals."""
    rows = [(d.name, d.port, d.asked, d.given, d.rule, d.reason) for d in resolution.explanation]
    corrected = [
        f"{d.name} {d.port}: asked {d.asked}, given {d.given}: {d.reason}"
        for d in resolution.corrections
    ]
    refused = [f"{r.name} ({r.op}): {r.reason}" for r in resolution.refused]
    sections = (
        ("Given another dtype than asked:", corrected),
        ("Rules that decided nothing:", list(resolution.unmatched_rules)),
        ("The march can't run:", refused),
    )
    text = [text_table(rows, COLUMNS)]
    for head, lines in sections:
        if lines:
            text.append("\n".join([head, *(f"  {line}" for line in lines)]))
    return "\n\n".join(text) + "\n"
