"""--qtune-html and --qtune-json: one page without scripts, and the data it is made of."""

from __future__ import annotations

import json

import pytest


@pytest.mark.parametrize("workers", ["0", "2"])
def test_page_and_json_hold_the_same_run(project: pytest.Pytester, workers: str) -> None:
    project.runpytest(
        "--qtune", "-n", workers, "--qtune-html=out/q.html", "--qtune-json=out/q.json"
    )
    data = json.loads((project.path / "out/q.json").read_text())
    page = (project.path / "out/q.html").read_text()
    assert [t["nodeid"] for t in data["tests"]] == [
        "test_net.py::test_bad",
        "test_net.py::test_good",
    ]
    assert data["tests"][0]["results"][0]["metrics"] == {"atol": 0.5}
    assert "<script" not in page
    assert "consistency: head: got 0.5, limit &lt;= 0.3" in page
    assert "<svg" in page


def test_nan_and_infinity_survive_as_strings(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        from qtune.testing.record import conclude
        from qtune.testing.result import AssertionResult

        def test_odd():
            conclude(AssertionResult("c", "m", True, "x", "nan", "1",
                     {"a": float("nan"), "b": float("inf"), "c": None}))
        """
    )
    pytester.runpytest("--qtune-json=q.json").assert_outcomes(passed=1)
    metrics = json.loads((pytester.path / "q.json").read_text())["tests"][0]["results"][0][
        "metrics"
    ]
    assert metrics == {"a": "NaN", "b": "Infinity", "c": None}


def test_reports_of_a_run_without_qtune_tests_say_so(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_plain(): pass")
    pytester.runpytest("--qtune-html=q.html").assert_outcomes(passed=1)
    assert "No test of this run made a qtune assertion." in (pytester.path / "q.html").read_text()
