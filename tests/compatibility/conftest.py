"""A team's project in a temporary folder, and its runs as processes of their own.

Nothing here is shared with the rest of tests: ``python -m tests.compatibility`` runs a copy of
this folder in environments of its own.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import pytest

from . import project as files


def pytest_report_header() -> str:
    """Say which versions these results are about."""
    names = ("qtune", "pytest", "pluggy", "pytest-xdist", "pytest-html")
    return "compatibility: " + ", ".join(f"{name} {version(name)}" for name in names)


@pytest.fixture(autouse=True)
def without_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYTEST_ADDOPTS", "QTUNE_RUN_DIR", "CI", "FORCE_COLOR", "PY_COLORS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_COLOR", "1")


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    """The files of the project; whatever warns in its runs is an error."""
    for name, text in files.FILES.items():
        (pytester.path / name).write_text(text)
    return pytester


Run = Callable[..., tuple[pytest.RunResult, dict[str, Any]]]


@pytest.fixture
def run(pytester: pytest.Pytester) -> Run:
    """Run what lies in the folder with reports; return the run and the data of its JSON report."""

    def call(*args: str) -> tuple[pytest.RunResult, dict[str, Any]]:
        report = pytester.path / "run.json"
        report.unlink(missing_ok=True)
        result = pytester.runpytest_subprocess("--qtune", "--qtune-json=run.json", *args)
        assert "INTERNALERROR" not in result.stdout.str() + result.stderr.str()
        return result, json.loads(report.read_text())

    return call


def checks(data: dict[str, Any]) -> list[tuple[str, str, bool]]:
    """(test, kind, whether it held) for every check of a run."""
    return [
        (test["nodeid"], check["check"], check["ok"])
        for test in data["tests"]
        for check in test["results"]
    ]


EXPECTED_CHECKS = [(test, kind, ok) for test, (kind, ok) in sorted(files.CHECKS.items())]
