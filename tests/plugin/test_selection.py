"""Beside pytest's own options: what was run is what is reported, whatever stops or selects."""

from __future__ import annotations

import json
from typing import Any

import pytest

SUITE = """
import pytest
from checks import check

def test_a():
    check(True, model="a")

def test_b():
    check(False, model="b")

@pytest.mark.qtune_slow
def test_c():
    check(False, model="c")

def test_d():
    check(True, model="d")
"""


@pytest.fixture
def suite(project: pytest.Pytester) -> pytest.Pytester:
    project.makepyfile(test_net=SUITE)
    return project


def run(suite: pytest.Pytester, *args: str) -> tuple[pytest.RunResult, str]:
    """A run, and the models it reports on: those that failed in capitals."""
    result = suite.runpytest("--qtune", "--qtune-json=q.json", *args)
    assert "INTERNALERROR" not in result.stdout.str() + result.stderr.str()
    data: dict[str, Any] = json.loads((suite.path / "q.json").read_text())
    found = [check for test in data["tests"] for check in test["results"]]
    assert data["totals"]["checks"] == len(found)
    assert data["totals"]["failed"] == sum(not check["ok"] for check in found)
    return result, "".join(c["model"] if c["ok"] else c["model"].upper() for c in found)


@pytest.mark.parametrize(
    ("args", "reported"),
    [
        ((), "aBCd"),
        (("-x",), "aB"),
        (("--maxfail=2",), "aBC"),
        (("-k", "a or c"), "aC"),
        (("-m", "not qtune_slow"), "aBd"),
        (("test_net.py::test_c",), "C"),
        (("--deselect", "test_net.py::test_b"), "aCd"),
        (("--import-mode=importlib", "-o", "pythonpath=."), "aBCd"),
        (("--import-mode=append",), "aBCd"),
        (("-p", "no:cacheprovider", "-rA", "--durations=3", "-v"), "aBCd"),
        (("--tb=no", "--no-header", "--no-summary", "--show-capture=no", "-qq"), "aBCd"),
        (("--setup-show", "-s", "--tb=line"), "aBCd"),
        (("--runxfail", "--strict-markers", "-W", "error"), "aBCd"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value) or "none",
)
def test_report_is_about_the_tests_that_ran(
    suite: pytest.Pytester, args: tuple[str, ...], reported: str
) -> None:
    assert run(suite, *args)[1] == reported


def test_last_failed_and_failed_first(suite: pytest.Pytester) -> None:
    assert run(suite)[1] == "aBCd"
    assert run(suite, "--lf")[1] == "BC"
    assert run(suite, "--ff", "-x")[1] == "B"
    assert run(suite, "--nf")[1] == "aBCd"


def test_stepwise_goes_on_where_it_stopped(suite: pytest.Pytester) -> None:
    assert run(suite, "--sw")[1] == "aB"
    suite.makepyfile(test_net=SUITE.replace('check(False, model="b")', 'check(True, model="b")'))
    assert run(suite, "--sw")[1] == "bC"


@pytest.mark.parametrize("args", [("-x",), ("--maxfail=2",)], ids=" ".join)
def test_workers_stop_as_one_process_does(suite: pytest.Pytester, args: tuple[str, ...]) -> None:
    """Those under way in the other worker may still be reported, as pytest does."""
    result, reported = run(suite, "-n2", *args)
    assert result.ret in (pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.INTERRUPTED)
    counted = result.parseoutcomes()
    assert len(reported) == counted.get("passed", 0) + counted.get("failed", 0)


def test_a_run_without_the_terminal_still_writes_its_reports(suite: pytest.Pytester) -> None:
    args = ("--qtune", "--qtune-json=q.json", "--qtune-html=q.html", "-p", "no:terminal")
    done = suite.runpytest_subprocess(*args)
    assert done.ret == pytest.ExitCode.TESTS_FAILED, done.stderr.str()
    assert json.loads((suite.path / "q.json").read_text())["totals"]["checks"] == 4
    assert "INTERNALERROR" not in done.stdout.str() + done.stderr.str()


def test_colour_marks_failures_only_where_asked_for(suite: pytest.Pytester) -> None:
    assert "\x1b[31m" in run(suite, "--color=yes")[0].stdout.str()
    assert "\x1b" not in run(suite, "--color=no")[0].stdout.str()
