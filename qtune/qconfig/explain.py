"""The decisions of ``resolve`` as text."""

from __future__ import annotations

from qtune.qconfig.plan import Resolution
from qtune.report.table import text_table

COLUMNS = ("Module Name", "Port", "asked", "given", "rule", "reason")


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
