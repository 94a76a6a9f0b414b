"""The sections of the page that ``qtune report`` writes; ``None`` where their files are missing."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from qtune.analysis import files
from qtune.analysis.compare import OWN_TAIL
from qtune.analysis.grad_x_error import SCORE
from qtune.analysis.outputs import ONLY
from qtune.analysis.sensitivity import GAIN
from qtune.analysis.tune import FILE as TUNE
from qtune.cli.outcome import places
from qtune.cli.results import Result
from qtune.profiler.sensitivity_table import SensitivityTable
from qtune.profiler.statistic import FILE as STATISTIC
from qtune.profiler.tune_front import COLUMNS, TuneFront
from qtune.report.page import Link, Section, Table

TOP = 10
"""Rows of a table that the command's own page has whole."""
CHECK = "model_check_result.txt"
_COMPARED = "compare_per_layer_out_0.csv"
_OWN_ERRORS = "compare_per_layer_op_error_0.csv"
_UNSHOWN = ("", "mod_name", "base_op_type", "shape")
_GATE = ("gate", "ok", "value", "limit")
_FACTS = ("command", "status", "model", "march", "data", "calibration")


def runs(results: Mapping[str, Result]) -> Section | None:
    """The commands that were run, on what, and their gates."""
    if not results:
        return None
    rows = [
        {"command": name, "status": "ok" if result.ok else "FAIL"}
        | {fact: result.content.get(fact, "") for fact in _FACTS[2:]}
        for name, result in results.items()
    ]
    tables = [Table(_FACTS, rows, status="status", wrap=_FACTS[2:])]
    gates = [
        {
            "command": name,
            "status": "ok" if gate["ok"] else "FAIL",
            "bad": not gate["ok"],
            **{key: gate[key] for key in ("gate", "value", "limit")},
            "where": places({k: v for k, v in gate.items() if k not in _GATE}),
        }
        for name, result in results.items()
        for gate in result.content.get("gates", ())
    ]
    if gates:
        columns = ("command", "status", "gate", "value", "limit", "where")
        tables.append(Table(columns, gates, bad="bad", status="status", wrap=("where",)))
    return Section("Commands", tables=tables)


def check(folder: Path, result: Result | None) -> Section | None:
    """Findings about structure and march."""
    file = folder / CHECK
    if not file.is_file():
        return None
    found = {} if result is None else result.content["result"]["findings"]
    rows = [{"kind": kind, "finding": line} for kind, lines in found.items() for line in lines]
    whole = Section(CHECK, preformatted=[file.read_text(encoding="utf-8")], collapsed=True)
    tables = [Table(("kind", "finding"), rows, wrap=("finding",))] if rows else []
    text = ["Nothing was found."] if result is not None and not rows else []
    return Section("Structure and march", text=text, tables=tables, sections=[whole])


def bad_cases(folder: Path) -> Section | None:
    """The outputs over all cases."""
    if not (folder / files.REPORT).is_file():
        return None
    rows = files.read_report(folder).statistics()
    columns = ("output", "metric", "cases", "mean", "worst")
    table = Table(columns, rows, numeric=columns[2:])
    return Section("Outputs", tables=[table], links=_links(folder, files.REPORT_PAGE))


def comparison(folder: Path) -> Section | None:
    """The operators with the largest errors of their own, and all advice."""
    compared = _read_csv(folder / _COMPARED)
    if compared is None:
        return None
    tables = []
    own = _read_csv(folder / _OWN_ERRORS)
    if own:
        kept = [name for name in own[0] if name not in (*_UNSHOWN, OWN_TAIL[1])]
        columns = ["mod_name", OWN_TAIL[1], *kept]
        caption = f"The largest errors of their own (of {len(own)})"
        numeric = [name for name in columns if name.startswith("op_error")]
        tables.append(Table(columns, own[:TOP], caption=caption, numeric=[*numeric, "qscale"]))
    advised = [row for row in compared if row.get("advice")]
    if advised:
        columns = ["mod_name", "dtype", "qscale", "advice"]
        advised = [row | {"mod_name": row["mod_name"] or row["analy_op_type"]} for row in advised]
        tables.append(Table(columns, advised, caption="Advice", wrap=("advice",)))
    text = [] if advised else ["No operator needs advice."]
    links = _links(folder, "compare_per_layer_report_0.html")
    return Section("Operators", text=text, tables=tables, links=links)


def sensitivity(folder: Path) -> Section | None:
    """The first rows of every sensitivity table."""
    paths = sorted(folder.glob("output_*_case_*_sensitive_ops.pt"))
    if not paths:
        return None
    tables = [_ranking(table) for table in _telling(map(SensitivityTable.load, paths))]
    links = [
        link
        for page in sorted(folder.glob("sensitivity*.html"))
        for link in _links(folder, page.name)
    ]
    return Section("Sensitivity", tables=tables, links=links)


def _telling(tables: Iterable[SensitivityTable]) -> list[SensitivityTable]:
    """Of several cases of one output, their mean and worst."""
    by_output: dict[tuple[str, str], list[SensitivityTable]] = {}
    for table in tables:
        by_output.setdefault((table.output_name, table.metric), []).append(table)
    found = []
    for cases in by_output.values():
        found += [table for table in cases if table.case in ("mean", "worst")] or cases
    return found


def _ranking(table: SensitivityTable) -> Table:
    name = table.output_name or ONLY
    caption = f"{name}, case {table.case} (the first {min(TOP, len(table))} of {len(table)})"
    numeric = list(table.columns[5:])
    ranking = [name for name in numeric if name == SCORE or name.startswith(f"{GAIN}_")]
    rest = [name for name in numeric if name not in ranking]
    columns = ("op_name", "fake_stub_type", "dtype", *ranking, *rest)
    return Table(columns, table.records()[:TOP], caption=caption, numeric=numeric)


def tuning(folder: Path) -> Section | None:
    """The Pareto front."""
    path = folder / f"{TUNE}.pt"
    if not path.is_file():
        return None
    front = TuneFront.load(path)
    rows = [dict(zip(COLUMNS, row, strict=True)) for row in front.rows()]
    table = Table(COLUMNS, rows, numeric=COLUMNS[:-1], wrap=(COLUMNS[-1],))
    text = [f"{front.score} over {front.cost}, {front.march}"]
    return Section("Tuning", text=text, tables=[table], links=_links(folder, f"{TUNE}.html"))


def profile(folder: Path) -> Section | None:
    """The numbers of every tensor, folded."""
    found = [
        path for path in (folder / "profile" / STATISTIC, folder / STATISTIC) if path.is_file()
    ]
    if not found:
        return None
    text = found[0].read_text(encoding="utf-8")
    whole = Section(STATISTIC, preformatted=[text], collapsed=True)
    return Section("Tensors", sections=[whole])


def _links(folder: Path, page: str) -> Sequence[Link]:
    return [Link(page, page)] if (folder / page).is_file() else []


def _read_csv(path: Path) -> list[dict[str, Any]] | None:
    if not path.is_file():
        return None
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))
