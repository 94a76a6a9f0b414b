"""One model on a run's page: its checks, the dtypes of its operators, what it was made of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from qtune.report.page import Section, Table
from qtune.report.run_page_check import REST
from qtune.report.run_page_pictures import LAYERS, dtype_strip, parts_of
from qtune.report.run_page_values import Entry, clipped, name

MARKS = ("FAIL", "caught", "ok")
_MOST_NAMES = 60
"""Operators of one dtype that are named."""
_MOST_FACTS = 20
"""Different provenances of one model that are shown."""


@dataclass(frozen=True, slots=True)
class Model:
    """The checks of one model, failures first. ``anchor``: where links find it."""

    name: str
    checks: Sequence[Entry]
    anchor: str = ""

    @property
    def failed(self) -> int:
        """How many checks failed, and their tests with them."""
        return sum(check["mark"] == "FAIL" for check in self.checks)

    @property
    def mark(self) -> str:
        """The mark of its worst check."""
        return str(self.checks[0]["mark"])


def models_of(checks: Iterable[Entry]) -> list[Model]:
    """By model: most failures first, then by name. ``checks``: worst first."""
    found: dict[str, list[Entry]] = {}
    for check in checks:
        found.setdefault(str(check["model"]).strip() or "(no name)", []).append(check)
    models = [Model(key, group) for key, group in found.items()]
    models.sort(key=lambda model: (MARKS.index(model.mark), -model.failed, model.name))
    return [replace(model, anchor=f"model-{i}") for i, model in enumerate(models, 1)]


def checks_table(model: Model, rows: int) -> Section:
    """All checks of a model in a table, or the first so many."""
    columns = ["result", "check", "where", "got", "limit", "baseline", "test"]
    cells = [
        {
            "result": check["mark"],
            **{key: name(check[key]) for key in ("check", "where", "got", "limit", "test")},
            "baseline": name(check.get("baseline", "")),
            "bad": check["mark"] == "FAIL",
        }
        for check in model.checks[:rows]
    ]
    if not any(row["baseline"] for row in cells):
        columns.remove("baseline")
    table = Table(columns, cells, bad="bad", status="result", wrap=columns[2:], rest=REST)
    cut = f"The first {rows} of {len(model.checks)} checks; {REST}."
    text = [cut] if rows < len(model.checks) else []
    return Section(name(model.name), text, [table] if rows else [], anchor=model.anchor)


def facts(model: Model) -> Iterator[Section]:
    """Data types, provenance and artefacts, where known."""
    seen = [
        [(layer["name"], layer["dtype"]) for layer in check["layers"] if layer["dtype"]]
        for check in model.checks
        if parts_of(check) == LAYERS and check["check"] != "on_bpu"  # which names a few only
    ]
    best = max(seen, key=len, default=[])
    if best:
        yield _dtypes(best)
    tables: dict[str, Table] = {}
    for check in model.checks:
        known: Mapping[str, Any] = check["provenance"]
        if known and len(tables) < _MOST_FACTS:
            rows = [{"fact": name(k), "value": clipped(str(v))} for k, v in known.items()]
            tables.setdefault(repr(known), Table(("fact", "value"), rows, wrap=("value",)))
    files = sorted({str(check["artefact"]) for check in model.checks if check["artefact"]})
    if tables or files:
        paths = [("Artefact", file) for file in files[:_MOST_FACTS]]
        title = f"Provenance of {name(model.name)}"
        yield Section(title, tables=list(tables.values()), facts=paths, collapsed=True)


def _dtypes(pairs: Sequence[tuple[str, str]]) -> Section:
    """The dtype of every operator's result, from the check that saw most of them."""
    counts = Counter(dtype for _, dtype in pairs).most_common()
    rows = []
    for dtype, count in counts:
        names = [operator for operator, found in pairs if found == dtype]
        shown = ", ".join(map(name, names[:_MOST_NAMES]))
        more = f", and {count - _MOST_NAMES} more" if count > _MOST_NAMES else ""
        rows.append({"dtype": dtype, "results": count, "operators": shown + more})
    table = Table(
        ("dtype", "results", "operators"), rows, numeric=("results",), wrap=("operators",)
    )
    listed = Section("Which operators", tables=[table], collapsed=len(pairs) > _MOST_NAMES)
    text = ", ".join(f"{count} {dtype}" for dtype, count in counts)
    text = f"Results by operator, in order of execution: {text}."
    return Section("Data types", [text], pictures=[dtype_strip(pairs)], sections=[listed])
