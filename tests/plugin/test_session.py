"""What the controller collects from reports."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_qtune.session import QtuneSession


def report(outcome: str, attempt: int, **more: Any) -> pytest.TestReport:
    found = pytest.TestReport("t.py::t", ("t.py", 0, "t"), {}, outcome, "boom", "call", **more)
    found.qtune_attempt = attempt
    return found


@pytest.fixture
def session(pytester: pytest.Pytester) -> QtuneSession:
    return QtuneSession(pytester.parseconfig("--qtune"))


def test_a_failure_of_an_earlier_attempt_is_forgotten(session: QtuneSession) -> None:
    session.pytest_runtest_logreport(report("failed", 1))
    assert session.data()["other_failures"] == [{"nodeid": "t.py::t", "error": "boom"}]
    session.pytest_runtest_logreport(report("passed", 2))
    assert session.data()["other_failures"] == []


def test_a_test_that_passes_though_it_should_fail_says_so(session: QtuneSession) -> None:
    for outcome in ("skipped", "passed"):
        found = report(outcome, 1)
        found.qtune, found.wasxfail = [], "known"
        session.pytest_runtest_logreport(found)
    assert [test["outcome"] for test in session.data()["tests"]] == ["xfailed", "xpassed"]
