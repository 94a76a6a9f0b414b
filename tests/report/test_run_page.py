"""The page about a run, from data as the plugin gives it."""

from __future__ import annotations

import copy
from typing import Any

from functools import partial
from pytest_qtune import summary
from qtune.report import run_page as page

run_page = partial(page.run_page, mark=summary.mark, rank=summary.rank)

from .test_page import EVIL, checked


def layer(name: str, value: Any, ok: bool = True, dtype: str = "qint8") -> dict[str, Any]:
    return {
        "name": name,
        "value": value,
        "ok": ok,
        "badness": value,
        "shape": [4, 8],
        "dtype": dtype,
        "scale": 0.5,
        "differing": 0.25,
        "saturated": None,
    }


def result(check: str = "consistency", ok: bool = True, model: str = "net") -> dict[str, Any]:
    return {
        "check": check,
        "model": model,
        "ok": ok,
        "where": "head",
        "got": "COSINE 0.9",
        "limit": ">= 0.8",
        "headline": f"{check}: head: got COSINE 0.9, limit >= 0.8",
        "metrics": {"cosine": 0.9},
        "limits": {"cosine": 0.8},
        "layers": [
            layer("stem", 0.99),
            layer("body", "NaN", ok),
            layer("head", 0.9, ok, "torch.float32"),
        ],
        "measured": "COSINE of each operator",
        "table": "a note",
        "advice": "" if ok else "Do this.",
        "artefact": "store/net.bc",
        "provenance": {"march": "nash-e", "threads": 2},
    }


def run(*results: dict[str, Any], outcome: str = "passed", **rest: Any) -> dict[str, Any]:
    test = {"nodeid": "t.py::test_a", "outcome": outcome, "error": "E", "results": list(results)}
    failed = sum(not r["ok"] for r in results)
    totals = {
        "checks": len(results),
        "models": len({r["model"] for r in results}),
        "failed": failed if outcome == "failed" else 0,
        "caught": failed if outcome == "passed" else 0,
        "errors": int(not results),
    }
    return {
        "tests": [test],
        "totals": totals,
        "crashed_workers": [],
        "artefacts": {"built": 3, "read": 1},
        "settings": {"march": None, "threads": 2},
        **rest,
    }


def test_passing_run() -> None:
    page = checked(run_page(run(result())))
    assert "All checks passed." in page.text
    assert "details" in page.tags
    assert "Data types" in page.text
    assert "2 qint8, 1 torch.float32" in page.text
    assert "nash-e" in page.text
    assert "store/net.bc" in page.text
    assert "artefacts built" in page.text


def test_failing_run_opens_the_table_and_gives_the_advice() -> None:
    html = run_page(run(result(ok=False), outcome="failed"))
    page = checked(html)
    assert "Some checks failed." in page.text
    assert "Do this." in page.text
    assert "2 beyond the limit" in page.text
    assert "<details open>" in html
    assert '<span class="badge fail">FAIL</span>' in html


def test_failure_that_its_test_expects_is_caught() -> None:
    html = run_page(run(result(ok=False)))
    assert '<span class="badge caught">caught</span>' in html
    assert "failed, as their tests expect" in html


def test_structure_and_sensitivity_have_their_own_parts() -> None:
    html = run_page(run(result("no_shared_ops"), result("sensitivity_below"), result()))
    page = checked(html)
    assert "Structure" in page.text
    assert "Sensitivity below: COSINE 0.9, limit >= 0.8 (test_a)" in page.text
    assert html.count("<figure>") == 3  # bars, curve, data types


def test_crashed_workers_and_tests_without_a_check_are_listed() -> None:
    page = checked(run_page(run(outcome="failed", crashed_workers=["gw0: died"])))
    assert "gw0: died" in page.text
    assert "Tests that failed before they made a check" in page.text


def test_model_and_layer_names_are_escaped() -> None:
    evil = result(model=EVIL)
    evil["layers"] = [layer(EVIL, 0.5), *copy.deepcopy(evil["layers"])]
    for key in ("where", "got", "headline", "table", "advice", "measured", "artefact"):
        evil[key] = EVIL
    page = checked(run_page(run(evil)))
    assert "script" not in page.tags


def test_run_without_checks_says_so() -> None:
    empty = run()
    empty["tests"], empty["totals"]["errors"] = [], 0
    page = checked(run_page(empty))
    assert "No check was made." in page.text


def test_page_shows_where_operators_come_from_and_other_failures() -> None:
    data = run(result())
    data["tests"][0]["results"][0]["layers"][0]["source"] = "net.py:12"
    data["totals"]["other_failures"] = 1
    data["other_failures"] = [{"nodeid": "t.py::test_b", "error": "ValueError: no"}]
    page = checked(run_page(data))
    assert "net.py:12" in page.text
    assert "All checks passed." not in page.text
    assert "ValueError: no" in page.text
