"""``--qtune-compat``: aliases before the first conftest, in workers too, and gone at the end."""

from __future__ import annotations

import sys

import pytest

from qtune.compat.install import finder

TEST = """
import subprocess, sys
from horizon_plugin_pytorch import March

def test_names(march):
    assert march is March.NASH_E

def test_children():
    code = "from horizon_plugin_pytorch import March"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
"""
CONFTEST = """
import pytest
from horizon_plugin_pytorch import March

@pytest.fixture
def march():
    return March.NASH_E
"""


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(TEST)
    return pytester


def test_the_flag_serves_conftests_and_tests_and_leaves_nothing(project: pytest.Pytester) -> None:
    project.runpytest("--qtune-compat").assert_outcomes(passed=2)
    assert finder() is None
    assert "horizon_plugin_pytorch" not in sys.modules


@pytest.mark.parametrize("value", ["true", "false", "maybe"])
def test_the_ini_key_says_true_or_false(value: str, project: pytest.Pytester) -> None:
    project.makeini(f"[pytest]\nqtune_compat = {value}")
    result = project.runpytest()
    if value == "true":
        result.assert_outcomes(passed=2)
        return
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    expected = (
        "*is not legal; give true or false" if value == "maybe" else "*horizon_plugin_pytorch*"
    )
    result.stderr.fnmatch_lines([expected])


def test_workers_have_the_names(project: pytest.Pytester) -> None:
    pytest.importorskip("xdist")
    result = project.runpytest_subprocess("--qtune-compat", "-n", "2")
    result.assert_outcomes(passed=2)


def test_without_it_no_name_is_served(project: pytest.Pytester) -> None:
    result = project.runpytest()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*No module named 'horizon_plugin_pytorch'*"])
