"""The page about one pytest run, from the plugin's data (``--qtune-json`` has the same)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from qtune.report.page import Chip, Section, Table, Tile, render
from qtune.report.svg import bars, curve

CHECK_COLUMNS = ("result", "check", "where", "got", "limit", "test")
LAYER_COLUMNS = ("name", "source", "value", "dtype", "scale", "shape", "differing", "saturated")
STRUCTURE = ("no_shared_ops", "no_unfused")
MOST_BARS = 25
FEWEST_POINTS = 3
"""A curve of fewer layers says no more than the table."""

Entry = Mapping[str, Any]


def run_page(data: Mapping[str, Any]) -> str:
    """Render the run: numbers at the top, a summary, one section per model, crashes, settings."""
    models: dict[str, list[Entry]] = {}
    for test in data["tests"]:
        for result in test["results"]:
            entry = {**result, "test": test["nodeid"], "mark": _mark(test, result)}
            models.setdefault(result["model"], []).append(entry)
    sections = [_summary(models), *_without_checks(data)]
    if data["crashed_workers"]:
        sections.append(Section("Crashed workers", text=data["crashed_workers"]))
    sections += [_model(name, models[name]) for name in sorted(models)]
    sections.append(_settings(data))
    return render(
        "qtune report", sections, subtitle=_subtitle(data["totals"]), tiles=_tiles(data["totals"])
    )


def _mark(test: Entry, result: Entry) -> str:
    if result["ok"]:
        return "ok"
    return "FAIL" if test["outcome"] == "failed" else "caught"


def _subtitle(totals: Mapping[str, int]) -> str:
    if totals["failed"] or totals["errors"]:
        return "Some checks failed."
    if totals.get("other_failures"):
        return "No check failed, but other tests of this run did."
    return "All checks passed." if totals["checks"] else "No check was made."


def _tiles(totals: Mapping[str, int]) -> list[Tile]:
    failed, errors = totals["failed"], totals["errors"]
    tiles = [
        Tile(str(totals["models"]), "models"),
        Tile(str(totals["checks"]), "checks"),
        Tile(str(failed), "failed", "bad" if failed else "good"),
    ]
    if totals["caught"]:
        tiles.append(Tile(str(totals["caught"]), "failed, as their tests expect"))
    if errors:
        tiles.append(Tile(str(errors), "tests failed without a check", "bad"))
    if others := totals.get("other_failures"):
        tiles.append(Tile(str(others), "other tests failed", "bad"))
    return tiles


def _summary(models: Mapping[str, Sequence[Entry]]) -> Section:
    rows = []
    for name, entries in sorted(models.items()):
        bad = [entry for entry in entries if entry["mark"] == "FAIL"]
        odd = bad or [entry for entry in entries if entry["mark"] == "caught"]
        rows.append(
            {
                "": odd[0]["mark"] if odd else "ok",
                "model": name,
                "checks": len(entries),
                "failed": len(bad),
                "first failure": odd[0]["headline"] if odd else "",
            }
        )
    if not rows:
        return Section("Summary", text=["No test of this run made a qtune assertion."])
    columns = ("", "model", "checks", "failed", "first failure")
    table = Table(
        columns,
        rows,
        bad="failed",
        numeric=("checks", "failed"),
        link="model",
        wrap=("first failure",),
        status="",
    )
    return Section("Summary", tables=[table])


def _without_checks(data: Mapping[str, Any]) -> Iterator[Section]:
    """Failures that are no failed check."""
    found = {
        "Tests that failed before they made a check": [
            test for test in data["tests"] if not test["results"]
        ],
        "Other tests that failed": data.get("other_failures", ()),
    }
    for title, tests in found.items():
        rows = [{"test": test["nodeid"], "error": test["error"]} for test in tests]
        if rows:
            table = Table(("test", "error"), rows, wrap=("test", "error"))
            yield Section(title, tables=[table])


def _model(name: str, entries: Sequence[Entry]) -> Section:
    order = {"FAIL": 0, "caught": 1, "ok": 2}
    ordered = sorted(entries, key=lambda entry: order[entry["mark"]])
    rows = [{**e, "result": e["mark"], "bad": e["mark"] == "FAIL"} for e in ordered]
    parts = [
        *_structure(ordered),
        *(_check(e) for e in ordered if e["check"] not in STRUCTURE),
        *_dtypes(ordered),
        *_provenance(ordered),
    ]
    table = Table(CHECK_COLUMNS, rows, bad="bad", status="result", wrap=("where", "test"))
    return Section(name, tables=[table], sections=parts)


def _structure(entries: Sequence[Entry]) -> Iterator[Section]:
    """The structure checks as text."""
    found = [entry for entry in entries if entry["check"] in STRUCTURE]
    if found:
        text = [line for entry in found for line in (entry["headline"], entry["advice"]) if line]
        plain = [entry["table"] for entry in found if entry["table"]]
        yield Section("Structure", text=text, preformatted=plain)


def _check(entry: Entry) -> Section:
    layers = entry["layers"]
    text = [f"{entry['headline']} ({entry['mark']}, {entry['test'].rsplit('::', 1)[-1]})"]
    text += [entry["advice"]] if entry["advice"] else []
    plain = [entry["table"]] if entry["table"] else []
    inner = [_layers(entry)] if layers else []
    kind = (
        "Sensitivity" if _is_sensitivity(entry) else entry["check"].replace("_", " ").capitalize()
    )
    title = f"{kind}: {entry['measured']}" if entry["measured"] else kind
    return Section(title, text, (), list(_pictures(entry, layers)), plain, inner)


def _layers(entry: Entry) -> Section:
    """The table of all layers; open where one of them is bad."""
    rows = [_row(layer) for layer in entry["layers"]]
    columns = [c for c in LAYER_COLUMNS if any(row[c] not in ("", None) for row in rows)]
    numeric = ("value", "scale", "differing", "saturated")
    table = Table(columns, rows, bad="bad", numeric=numeric)
    bad = sum(row["bad"] for row in rows)
    order = "worst first" if _is_sensitivity(entry) else "in order of execution"
    title = f"{len(rows)} rows, {bad} beyond the limit, {order}"
    return Section(title, tables=[table], collapsed=not bad)


def _row(layer: Entry) -> dict[str, Any]:
    shape = "" if layer["shape"] is None else "×".join(map(str, layer["shape"])) or "scalar"
    return {
        **layer,
        "value": _number(layer["value"]),
        "scale": _number(layer["scale"]),
        "shape": shape,
        "source": layer.get("source", ""),
        "differing": _percent(layer["differing"]),
        "saturated": _percent(layer["saturated"]),
        "bad": not layer["ok"],
    }


def _pictures(entry: Entry, layers: Sequence[Entry]) -> Iterator[str]:
    limit = next(iter(entry["limits"].values()), None)
    bad = {layer["name"] for layer in layers if not layer["ok"]}
    if _is_sensitivity(entry):
        worst = sorted(layers, key=lambda layer: -_finite(layer["badness"]))[:MOST_BARS]
        values = {layer["name"]: _finite(layer["value"]) for layer in worst}
        yield bars(values, x_label=entry["measured"], limit=limit, bad=bad)
    elif len(layers) >= FEWEST_POINTS and (bad or entry["check"] == "consistency"):
        points = [None if layer["value"] is None else _finite(layer["value"]) for layer in layers]
        names = [layer["name"] for layer in layers]
        series = {entry["measured"]: points}
        yield curve(series, names, y_label=entry["measured"], limit=limit, bad=bad)


def _dtypes(entries: Sequence[Entry]) -> Iterator[Section]:
    """The dtype of every operator's result, from the check that saw most of them."""
    seen = [
        [layer for layer in entry["layers"] if layer["dtype"]]
        for entry in entries
        if not _is_sensitivity(entry)
    ]
    best = max(seen, key=len, default=[])
    if not best:
        return
    counts = Counter(layer["dtype"] for layer in best)
    text = ", ".join(f"{count} {dtype}" for dtype, count in counts.most_common())
    chips = [Chip(layer["name"], _kind(layer["dtype"]), layer["dtype"]) for layer in best]
    text = f"Results by operator, in order of execution: {text}."
    yield Section("Data types", [text], chips=chips)


def _kind(dtype: str) -> str:
    return "float" if dtype.startswith("torch.") else dtype


def _provenance(entries: Sequence[Entry]) -> Iterator[Section]:
    """What the model was made of; one table for each different answer."""
    tables, seen = [], set()
    for entry in entries:
        facts = {**entry["provenance"]}
        if facts and repr(facts) not in seen:
            seen.add(repr(facts))
            rows = [{"fact": k, "value": str(v)} for k, v in facts.items()]
            tables.append(Table(("fact", "value"), rows))
    files = sorted({entry["artefact"] for entry in entries if entry["artefact"]})
    if tables or files:
        plain = ["\n".join(files)] if files else []
        yield Section("Provenance", tables=tables, preformatted=plain, collapsed=True)


def _settings(data: Mapping[str, Any]) -> Section:
    artefacts = {f"artefacts {name}": n for name, n in sorted(data["artefacts"].items())}
    facts = {**data["settings"], **artefacts}
    rows = [{"setting": k, "value": "" if v is None else str(v)} for k, v in facts.items()]
    return Section("Settings", tables=[Table(("setting", "value"), rows)])


def _is_sensitivity(entry: Entry) -> bool:
    return str(entry["check"]).startswith("sensitivity")


def _number(value: Any) -> Any:
    return f"{value:.7g}" if isinstance(value, int | float) else value


def _percent(share: Any) -> str:
    return f"{share:.2%}" if isinstance(share, int | float) else ""


def _finite(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else float("nan")
