"""Data of runs in the shape of ``--qtune-json``, as large as asked."""

from __future__ import annotations

from functools import partial
from typing import Any

from pytest_qtune import summary
from qtune.report import run_page as page

Entry = dict[str, Any]

render = partial(page.run_page, mark=summary.mark, rank=summary.rank)
"""The page as the plugin makes it."""


def layers(count: int, ok: bool = True) -> list[Entry]:
    """Layers of cosine 0.99; if not ``ok``, the middle one has 0.5."""
    found = []
    for index in range(count):
        good = ok or index != count // 2
        value = 0.99 if good else 0.5
        found.append(
            {
                "name": f"backbone.stage{index // 10}.block{index % 10}.conv",
                "value": value,
                "ok": good,
                "badness": -value,
                "shape": [1, 64, 28, 28],
                "dtype": "qint16" if index % 7 == 3 else "qint8",
                "scale": 0.0123,
                "differing": 0.25,
                "saturated": 0.01,
                "source": f"net.py:{index}",
            }
        )
    return found


def result(model: str = "net", *, ok: bool = True, count: int = 5, **changed: Any) -> Entry:
    """A consistency check over ``count`` layers."""
    got = f"COSINE {0.99 if ok else 0.5}"
    entry = {
        "check": "consistency",
        "model": model,
        "ok": ok,
        "where": "head",
        "got": got,
        "limit": ">= 0.98",
        "headline": f"consistency: head: got {got}, limit >= 0.98",
        "metrics": {"min_cosine": 0.99 if ok else 0.5},
        "limits": {"min_cosine": 0.98},
        "layers": layers(count, ok),
        "measured": "COSINE of each operator",
        "parts": "layers",
        "table": "",
        "advice": "" if ok else "Raise it to qint16.",
        "artefact": "store/net.bc",
        "provenance": {"march": "nash-e"},
        "baseline": "",
    }
    return {**entry, **changed}


def entry_of(nodeid: str, *results: Entry, outcome: str = "passed", **more: Any) -> Entry:
    """A test with its checks."""
    return {"nodeid": nodeid, "outcome": outcome, "error": "", "results": list(results), **more}


def gate(metric: str, outcome: str, value: Any, limit: str, **changed: Any) -> Entry:
    """A gate of the model ``net``."""
    entry = {
        "nodeid": f"qtune-gate::net[{metric}]",
        "model": "net",
        "metric": metric,
        "expression": f"{metric}{limit}",
        "relation": "absolute",
        "outcome": outcome,
        "value": value,
        "limit": limit,
        "baseline": None,
        "test": "t.py::test_a",
        "message": f"{metric} of net: got {value}, limit {limit}",
    }
    return {**entry, **changed}


def baseline(status: str, name: str = "top1", **changed: Any) -> Entry:
    """An entry of a baseline file."""
    entry = {
        "file": "__qtune__/test_net.json",
        "key": "TestNet.test_top1",
        "name": name,
        "status": status,
        "value": 71.0,
        "baseline": 72.0,
        "limit": ">= 71.5",
        "note": "",
    }
    return {**entry, **changed}


def run(*tests: Entry, **more: Any) -> Entry:
    """A run of these tests."""
    totals = summary.totals(tests, more.get("gates", ()))
    return {
        "schema": 2,
        "tests": list(tests),
        "gates": [],
        "baselines": [],
        "totals": totals | {"other_failures": len(more.get("other_failures", ()))},
        "other_failures": [],
        "crashed_workers": [],
        "artefacts": {"built": 3, "read": 1},
        "settings": {"march": None, "threads": 2},
        **more,
    }


def large_run(models: int, tests: int, count: int, failing: int) -> Entry:
    """``models`` with ``tests`` each, of which the first ``failing`` fail, of ``count`` layers."""
    good, bad = layers(count), layers(count, ok=False)
    found = []
    for model in range(models):
        for index in range(tests):
            ok = index >= failing
            entry = result(f"model{model}", ok=ok, count=0, layers=good if ok else bad)
            nodeid = f"test_m.py::TestModel{model}::test_case[{index}]"
            outcome = "passed" if ok else "failed"
            found.append(entry_of(nodeid, entry, outcome=outcome, rerun=f"pytest {nodeid}"))
    return run(*found)
