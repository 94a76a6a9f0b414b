"""The page of ``tune``: the front as curves and as a table."""

from __future__ import annotations

from typing import Any

from qtune.profiler.tune_front import COLUMNS, TuneFront
from qtune.report.page import Section, Table, Tile, render
from qtune.report.svg import curve

POINT = "point"


def tune_page(front: TuneFront) -> str:
    """Scores and costs of every point, cheapest first."""
    rows: list[dict[str, Any]] = [
        {POINT: place, **dict(zip(COLUMNS, row, strict=True))}
        for place, row in enumerate(front.rows())
    ]
    labels = [str(point.stubs) for point in front.points]
    pictures = [
        curve(
            {name: [getattr(point, name) for point in front.points] for name in names},
            labels,
            title=f"{title} from point to point",
            y_label=title,
            x_label="number of raised stubs",
        )
        for title, names in (
            (front.score, ("mean", "worst")),
            (front.cost, (front.cost,)),
        )
    ]
    better = "larger" if front.ascending else "smaller"
    table = Table((POINT, *COLUMNS), rows, numeric=(POINT, *COLUMNS[:-1]), wrap=("raised",))
    skipped = [{"stub": name, "reason": reason} for name, reason in front.skipped.items()]
    sections = [
        Section("Scores and costs", text=front.notes, pictures=pictures),
        Section("Points", tables=[table]),
    ]
    if skipped:
        left = Table(("stub", "reason"), skipped, wrap=("reason",))
        sections.append(Section("Not raised", tables=[left]))
    first, last = front.points[0], front.points[-1]
    tiles = [
        Tile(f"{first.mean:.6g}", "as it is"),
        Tile(f"{last.mean:.6g}", "best", "good" if front else ""),
        Tile(f"{last.int16_macs:.1%}", "int16 multiply-adds of the best"),
    ]
    subtitle = (
        f"{front.score} ({better} is better) over {front.cost} on {front.march}; "
        f"{len(front.evaluated)} points measured, {len(front.points)} worth their cost"
    )
    return render("Tuning", sections, subtitle=subtitle, sortable=True, tiles=tiles)
