"""The page about one pytest run, from the plugin's data (``--qtune-json`` has the same)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from qtune.report.page import Section, Table, render
from qtune.report.svg import bars, curve

CHECK_COLUMNS = ("result", "check", "where", "got", "limit", "outcome", "test")
LAYER_COLUMNS = ("name", "value", "dtype", "scale", "shape", "differing", "saturated")
MOST_BARS = 25


def run_page(data: Mapping[str, Any]) -> str:
    """Render the run: a summary, one section per model, crashed workers, settings."""
    models: dict[str, list[dict[str, Any]]] = {}
    for test in data["tests"]:
        for result in test["results"]:
            entry = {**result, "test": test["nodeid"], "outcome": test["outcome"]}
            models.setdefault(result["model"], []).append(entry)
    results = [r for entries in models.values() for r in entries]
    failed = sum(not r["ok"] for r in results)
    subtitle = f"{len(results)} checks on {len(models)} model(s), {failed} failed"
    sections = [_summary(models), *(_model(name, models[name]) for name in sorted(models))]
    if data["crashed_workers"]:
        sections.append(Section("Crashed workers", text=data["crashed_workers"]))
    settings = [{"setting": k, "value": v} for k, v in sorted(data["settings"].items())]
    sections.append(Section("Settings", tables=[Table(("setting", "value"), settings)]))
    return render("qtune report", sections, subtitle=subtitle)


def _summary(models: Mapping[str, Sequence[Mapping[str, Any]]]) -> Section:
    rows = [
        {
            "model": name,
            "checks": len(entries),
            "failed": sum(not e["ok"] for e in entries),
            "worst": next((e["headline"] for e in entries if not e["ok"]), ""),
        }
        for name, entries in sorted(models.items())
    ]
    text = () if rows else ("No test of this run made a qtune assertion.",)
    table = Table(("model", "checks", "failed", "worst"), rows, bad="failed")
    return Section("Summary", text=text, tables=[table] if rows else ())


def _model(name: str, entries: Sequence[Mapping[str, Any]]) -> Section:
    ordered = sorted(entries, key=lambda e: bool(e["ok"]))
    rows = [{**e, "result": "ok" if e["ok"] else "FAIL", "bad": not e["ok"]} for e in ordered]
    parts = [_check(entry) for entry in ordered if entry["layers"] or entry["table"]]
    return Section(name, tables=[Table(CHECK_COLUMNS, rows, bad="bad")], sections=parts)


def _check(entry: Mapping[str, Any]) -> Section:
    layers = entry["layers"]
    pictures, tables = [], []
    if layers:
        pictures.append(_picture(entry, layers))
        rows = [{**layer, "bad": not layer["ok"]} for layer in layers]
        tables.append(Table(LAYER_COLUMNS, rows, bad="bad", caption="in order of execution"))
    plain = [entry["table"]] if entry["table"] else []
    title = f"{entry['check']} ({entry['test'].rsplit('::', 1)[-1]})"
    return Section(title, [entry["headline"]], tables, pictures, plain)


def _picture(entry: Mapping[str, Any], layers: Sequence[Mapping[str, Any]]) -> str:
    limit = next(iter(entry["limits"].values()), None)
    if entry["check"].startswith("sensitivity"):
        worst = sorted(layers, key=lambda layer: -_finite(layer["badness"]))[:MOST_BARS]
        values = {layer["name"]: _finite(layer["value"]) for layer in worst}
        return bars(values, x_label=entry["measured"], limit=limit)
    values = [None if layer["value"] is None else _finite(layer["value"]) for layer in layers]
    names = [layer["name"] for layer in layers]
    return curve({entry["measured"]: values}, names, y_label=entry["measured"], limit=limit)


def _finite(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else float("nan")
