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


def test_page_gives_the_command_that_repeats_a_failed_test(project: pytest.Pytester) -> None:
    project.runpytest("--qtune-html=q.html", "--qtune-json=q.json", "-o", "qtune_threads=1")
    data = json.loads((project.path / "q.json").read_text())
    command = "pytest --qtune -o qtune_threads=1 test_net.py::test_bad"
    assert [test["rerun"] for test in data["tests"]] == [command, ""]
    page = (project.path / "q.html").read_text()
    assert f"Run again: <code>{command.replace('::', '::<wbr>')}</code>" in page


def test_page_lists_files_that_cannot_be_collected_and_fixtures_that_fail(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        test_broken="import no_such_module",
        test_fixture="""
            import pytest

            @pytest.fixture
            def stages(qtune_stages):
                raise ValueError("no calibration data")

            def test_net(stages):
                pass
            """,
    )
    pytester.runpytest("--qtune-html=q.html", "--continue-on-collection-errors")
    page = (pytester.path / "q.html").read_text()
    assert "No module named &#39;no_such_module&#39;" in page
    assert "Tests that failed before they made a check" in page
    assert "no calibration data" in page


def test_expected_failure_is_caught(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest
        from qtune.testing.record import conclude
        from qtune.testing.result import AssertionResult

        @pytest.mark.xfail(strict=True)
        def test_known():
            conclude(AssertionResult("c", "m", False, "x", "1", "2"))
        """
    )
    pytester.runpytest("--qtune-html=q.html").assert_outcomes(xfailed=1)
    page = (pytester.path / "q.html").read_text()
    assert '<span class="badge caught">caught</span>' in page
    assert "All checks passed." in page


def test_gates_and_baselines_are_on_the_page(project: pytest.Pytester) -> None:
    project.makepyfile(
        test_base="""
        def test_stored(qtune_baseline):
            qtune_baseline.check("top1", 71.5)
        """
    )
    project.runpytest("--qtune", "--qtune-gates=atol <= 0.4", "--qtune-html=q.html")
    page = (project.path / "q.html").read_text()
    assert '<h2 id="s-Gates">Gates</h2>' in page
    assert "net: atol: got 0.5, limit &lt;= 0.4" in page
    assert '<span class="badge missing">missing</span>' in page
    assert "__qtune__/test_base.json" in page
