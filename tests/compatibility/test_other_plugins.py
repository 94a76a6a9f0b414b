"""Beside pytest-cov, -randomly, -rerunfailures and -timeout: each with what could go wrong.

They are found where ``requirements.txt`` was installed; a test without its plugin is skipped.
"""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections.abc import Callable
from typing import Any

import pytest

from . import project as files
from .conftest import EXPECTED_CHECKS, Run, checks

PLUGINS = {
    "pytest_cov": "pytest_cov",
    "pytest_randomly": "randomly",
    "pytest_rerunfailures": "rerunfailures",
    "pytest_timeout": "timeout",
}
"""Modules of the plugins, and the names by which pytest knows these."""
Only = Callable[[str], None]


@pytest.fixture
def only(monkeypatch: pytest.MonkeyPatch) -> Only:
    """``only(module)``: inner runs load that plugin, not the others; skip if it is missing."""

    def call(wanted: str) -> None:
        pytest.importorskip(wanted)
        others = [name for module, name in PLUGINS.items() if module != wanted]
        monkeypatch.setenv("PYTEST_ADDOPTS", " ".join(f"-p no:{name}" for name in others))

    return call


def numbers(data: dict[str, Any]) -> list[dict[str, float]]:
    return [check["metrics"] for test in data["tests"] for check in test["results"]]


def test_coverage_counts_the_users_code_in_workers(
    only: Only, run: Run, project: pytest.Pytester
) -> None:
    """Recording a model runs its forward under the tracer, in each worker."""
    only("pytest_cov")
    result, data = run(
        "-n2", "--qtune-update=new", "--cov=net", "--cov-branch", "--cov-report=json:cov.json"
    )
    result.assert_outcomes(**files.OUTCOMES)
    assert checks(data) == EXPECTED_CHECKS
    covered = json.loads((project.path / "cov.json").read_text())["files"]
    assert {name: file["summary"]["percent_covered"] for name, file in covered.items()} == {
        "net.py": 100.0
    }


DRAW = """
import random
import numpy
import torch

def state():
    return random.getstate(), numpy.random.get_state()[1].tolist(), torch.get_rng_state().tolist()

def test_building_draws_none_of_the_tests_numbers(stages):
    before = state()
    assert stages.hbm
    assert state() == before
"""


def test_order_and_reseeding_change_no_number(
    only: Only, run: Run, project: pytest.Pytester
) -> None:
    """Factories and calibration are seeded by us, and each test's own draws by pytest-randomly."""
    only("pytest_randomly")
    (project.path / "test_net.py").write_text(files.TESTS + DRAW)
    found = []
    for seed in (1, 2):
        result, data = run(
            "-p", "no:cacheprovider", "-n0", "--qtune-update", f"--randomly-seed={seed}"
        )
        result.assert_outcomes(passed=files.OUTCOMES["passed"] + 1, failed=3)
        assert checks(data) == EXPECTED_CHECKS
        assert data["artefacts"]["built"] == files.ARTEFACTS + 1
        found.append(numbers(data))
    assert found[0] == found[1]


FLAKY = """
import pathlib
import pytest
from checks import check

def attempt(name):
    file = pathlib.Path(name)
    count = int(file.read_text()) + 1 if file.exists() else 1
    file.write_text(str(count))
    return count

@pytest.fixture
def checked():
    check(True, model="in setup")
    yield
    check(True, model="in teardown")

def test_second_time_lucky(checked):
    check(attempt("lucky") == 2, model="lucky")

def test_never(checked):
    check(False, model="never")

def test_once():
    check(True, model="once")
"""


@pytest.mark.parametrize("workers", ["-n0", "-n2"])
def test_a_test_run_again_counts_once(
    only: Only, run: Run, pytester: pytest.Pytester, workers: str
) -> None:
    only("pytest_rerunfailures")
    (pytester.path / "checks.py").write_text(files.CHECK)
    (pytester.path / "test_flaky.py").write_text(FLAKY)
    result, data = run("--reruns=2", "--junitxml=junit.xml", workers)
    result.assert_outcomes(passed=2, failed=1)
    assert result.parseoutcomes()["rerun"] == 3
    found = [(c["model"], c["ok"]) for t in data["tests"] for c in t["results"]]
    assert sorted(found) == [
        ("in setup", True),
        ("in setup", True),
        ("in teardown", True),
        ("in teardown", True),
        ("lucky", True),
        ("never", False),
        ("once", True),
    ]
    assert (data["totals"]["failed"], data["totals"]["caught"]) == (1, 0)
    for case in ET.parse(pytester.path / "junit.xml").getroot().iter("testcase"):
        names = [pair.get("name") for pair in case.iter("property")]
        assert len(names) == len(set(names)), (case.get("name"), names)


HANG = """
import pathlib, time
import net
import pytest
from qtune.testing.stages import Stages

build = Stages._calibrated_state

def hang_once(stages):
    if not started.exists():
        started.touch()
        time.sleep(60)
    return build(stages)

started = pathlib.Path("started")
Stages._calibrated_state = hang_once

@pytest.fixture(scope="session")
def stages(qtune_stages):
    made = qtune_stages(net.Net, net.batches, march="nash-e")
    assert made.key  # whatever takes long, but for the calibration
    return made

@pytest.mark.timeout(2, func_only=True)
def test_hangs(stages):
    assert stages.calib

def test_builds(stages):
    assert stages.calib
"""


@pytest.mark.parametrize("method", ["signal", "thread"])
def test_a_timeout_while_calibrating_frees_the_artefact(
    only: Only, run: Run, pytester: pytest.Pytester, method: str
) -> None:
    """``signal`` raises in the test, ``thread`` ends the process; the next one builds it."""
    only("pytest_timeout")
    (pytester.path / "net.py").write_text(files.NET)
    (pytester.path / "test_net.py").write_text(HANG)
    first = pytester.runpytest_subprocess("--qtune", f"--timeout-method={method}")
    assert "Timeout" in first.stdout.str() + first.stderr.str()
    if method == "signal":
        first.assert_outcomes(passed=1, failed=1)
    else:
        assert not list(pytester.path.glob(".pytest_cache/d/qtune/*/calib.pt"))
        result, data = run()
        result.assert_outcomes(passed=2)
        assert data["artefacts"] == {"built": 1, "read": 0}
    assert len(list(pytester.path.glob(".pytest_cache/d/qtune/*/calib.pt"))) == 1
    assert not list(pytester.path.glob(".pytest_cache/d/qtune/*/.*part*"))
