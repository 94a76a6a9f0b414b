"""``qtune report``: one page over what the commands, or ``QuantAnalysis``, left in a folder."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path

from qtune.cli import report_sections as sections
from qtune.cli.outcome import InputError, Outcome
from qtune.cli.results import Result, read_results
from qtune.report.files import write_text
from qtune.report.page import Section, Tile, render

PAGE = "index.html"


def run(args: argparse.Namespace) -> Outcome:
    """Write the page of the folder that the options name."""
    folder = Path(args.folder)
    if not folder.is_dir():
        raise InputError(f"DIR: there is no folder {folder}; the other commands write it")
    results = read_results(folder)
    found = {name: section for name, section in _sections(folder, results) if section}
    if not found:
        raise InputError(f"DIR: nothing of qtune lies in {folder}; run another command first")
    page = write_text(folder / PAGE, _page(args.title, folder, results, found))
    facts = {"folder": str(folder), "page": str(page)}
    return Outcome(facts, {"sections": list(found)}, f"sections: {', '.join(found)}", (), [page])


def _sections(folder: Path, results: Mapping[str, Result]) -> Iterator[tuple[str, Section | None]]:
    yield "runs", sections.runs(results)
    yield "check", sections.check(folder, results.get("check"))
    yield "bad cases", sections.bad_cases(folder)
    yield "comparison", sections.comparison(folder)
    yield "sensitivity", sections.sensitivity(folder)
    yield "tuning", sections.tuning(folder)
    yield "profile", sections.profile(folder)


def _page(
    title: str, folder: Path, results: Mapping[str, Result], found: Mapping[str, Section]
) -> str:
    failed = sum(not result.ok for result in results.values())
    tiles = [Tile(str(len(results)), "commands run")] if results else []
    if results:
        tiles.append(Tile(str(failed), "with a failed gate", "bad" if failed else "good"))
    return render(title, list(found.values()), subtitle=str(folder), sortable=True, tiles=tiles)
