"""A project in a temporary folder whose tests make assertions with known results."""

from __future__ import annotations

import contextlib
import importlib
import pkgutil

import pytest

import qtune

from .baseline_flow import Workflow

CHECKS = """
import pytest
from qtune.testing.record import conclude
from qtune.testing.result import AssertionResult, LayerResult


def check(ok, got="0.5", model="net", name="consistency", **metrics):
    layers = [
        LayerResult("stem", 0.1, True, 0.1, (1, 8), "qint8", 0.01, 0.0, 0.0),
        LayerResult("body", 0.2, True, 0.2, (1, 8), "qint8", 0.01, 0.0, 0.0),
        LayerResult("head", 0.5, ok, 0.5, (1, 8), "qint8", 0.02, 0.25, 0.5),
    ]
    conclude(
        AssertionResult(
            name, model, ok, "head", got, "<= 0.3", metrics or {"atol": 0.5}, {"atol": 0.3},
            layers, "ATOL", advice="Raise head to qint16.",
        )
    )
"""


@pytest.fixture(scope="session", autouse=True)
def whole_engine() -> None:
    """Load everything once: a run in this process forgets the modules that it loaded itself."""
    for found in pkgutil.walk_packages(qtune.__path__, "qtune."):
        if not found.name.endswith("__main__"):  # which runs a command
            importlib.import_module(found.name)
    for name in ("llvmlite.ir", "llvmlite.binding"):  # which import parts of themselves late
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


LEFT_OUT = ("html", "metadata", "hypothesispytest")


@pytest.fixture(autouse=True)
def without_other_plugins(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inner runs and their workers load only what they need."""
    options = " ".join(f"-p no:{name}" for name in LEFT_OUT)
    monkeypatch.setenv("PYTEST_ADDOPTS", options)
    monkeypatch.delenv("QTUNE_RUN_DIR", raising=False)
    monkeypatch.delenv("CI", raising=False)  # baselines are written; tests of CI set it


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makepyfile(checks=CHECKS)
    pytester.makepyfile(
        test_net="""
        from checks import check

        def test_good():
            check(True, got="0.2")

        def test_bad():
            check(False)

        def test_without_qtune():
            pass
        """
    )
    return pytester


@pytest.fixture
def flow(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Workflow:
    monkeypatch.delenv("CI", raising=False)
    return Workflow(pytester)


@pytest.fixture
def stored(flow: Workflow) -> Workflow:
    """A project whose baseline of 31.25 is stored."""
    flow.measures(31.25)
    flow.run("--qtune-update=new").assert_outcomes(passed=1)
    return flow
