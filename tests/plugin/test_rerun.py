"""The command below a failure, run as a user would run it."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

PARAMETRIZED = """
import pytest
from checks import check

class TestNet:
    @pytest.mark.parametrize("case", ["a b", "it's", "x@y", "p[0]"])
    @pytest.mark.xdist_group("one group")
    def test_bad(self, case):
        check(False, model=case)
"""


def commands(result: pytest.RunResult) -> list[str]:
    return re.findall(r"^E +run again: (.*)$", result.stdout.str(), re.MULTILINE)


def run(command: str, folder: Path) -> str:
    """What the command prints, in ``folder``; with the interpreter of this run."""
    words = shlex.split(command)
    assert words[0] == "pytest"
    call = [sys.executable, "-m", *words, "-q", "--color=no"]
    return subprocess.run(call, cwd=folder, capture_output=True, text=True, check=False).stdout


@pytest.mark.parametrize("args", [(), ("-n", "2", "--dist", "loadgroup")], ids=["n0", "loadgroup"])
def test_command_runs_exactly_the_failed_test(
    project: pytest.Pytester, args: tuple[str, ...]
) -> None:
    project.makepyfile(test_net=PARAMETRIZED)
    found = commands(project.runpytest(*args))
    assert len(found) == 4
    ids = {shlex.split(command)[-1] for command in found}
    assert ids == {f"test_net.py::TestNet::test_bad[{c}]" for c in ("a b", "it's", "x@y", "p[0]")}
    output = run(next(command for command in found if "x@y" in command), project.path)
    assert "qtune: 1 check on 1 model(s), 1 failed" in output


def test_command_serves_the_toolchains_names_again(project: pytest.Pytester) -> None:
    project.makepyfile(
        test_net="""
        from checks import check
        from horizon_plugin_pytorch import March

        def test_bad():
            check(False, model=str(March.BAYES))
        """
    )
    (command,) = commands(project.runpytest("--qtune-compat"))
    assert command == "pytest --qtune --qtune-compat test_net.py::test_bad"
    assert "qtune: 1 check on 1 model(s), 1 failed" in run(command, project.path)


def test_command_works_in_the_folder_where_pytest_was_called(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.makeini("[pytest]\npythonpath = .\n")
    inner = project.path / "tests" / "unit"
    inner.mkdir(parents=True)
    (project.path / "test_net.py").rename(inner / "test_net.py")
    monkeypatch.chdir(project.path / "tests")
    (command,) = commands(project.runpytest())
    assert command == "pytest --qtune unit/test_net.py::test_bad"
    assert "1 failed" in run(command, Path.cwd())


def test_command_repeats_the_options_that_the_result_depends_on(
    project: pytest.Pytester,
) -> None:
    project.makepyfile(
        test_march="""
        from checks import check

        def test_march(pytestconfig):
            check(pytestconfig.getoption("qtune_march") != "nash-m")
        """
    )
    result = project.runpytest(
        "--qtune-march=nash-m",
        "-p",
        "no:cacheprovider",
        "-o",
        "qtune_threads=1",
        "--qtune-html=q.html",
        "-v",
        "test_march.py",
    )
    (command,) = commands(result)
    assert command == (
        "pytest --qtune --qtune-march=nash-m -p no:cacheprovider -o qtune_threads=1 "
        "test_march.py::test_march"
    )
    assert "1 failed" in run(command, project.path)


def test_without_the_plugin_the_command_names_no_option_of_it(project: pytest.Pytester) -> None:
    """The assertions always assert; ``-p no:qtune`` only takes the reports away."""
    done = project.runpytest_subprocess("-p", "no:qtune")
    done.assert_outcomes(passed=2, failed=1)
    assert commands(done) == ["pytest test_net.py::test_bad"]


def test_variable_is_gone_after_the_run(project: pytest.Pytester) -> None:
    before = os.environ.get("QTUNE_RERUN")
    project.runpytest()
    assert os.environ.get("QTUNE_RERUN") == before
