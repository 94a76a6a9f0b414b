"""``--qtune-fuzz``: items from the registry, chosen, run, reported and repeated."""

from __future__ import annotations

import subprocess
import sys

import pytest

BROKEN = """
import dataclasses
from qtune.ops import registry

kernel = registry.kernels()["qtune", "QNeg"]
off = dataclasses.replace(kernel, fast=lambda node: lambda x: x)
registry._kernels["qtune", "QNeg"] = off
"""
"""A conftest.py whose fast kernel of ``neg`` gives back its input."""


@pytest.fixture(autouse=True)
def _no_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)


def test_items_run_without_any_file(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest("--qtune-fuzz=relu", "--qtune-fuzz-examples=2", "-v")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(
        ["*collected 2 items", "qtune-fuzz::relu?kernels? PASSED*", "qtune-fuzz::relu?integers? *"]
    )


def test_nothing_is_left_in_the_working_folder(pytester: pytest.Pytester) -> None:
    options = ("--qtune-fuzz=relu", "--qtune-fuzz-examples=2", "-p", "no:cacheprovider")
    pytester.makeconftest("")
    pytester.runpytest_subprocess(*options).assert_outcomes(passed=2)
    assert not list(pytester.path.glob("**/.hypothesis"))
    assert not list(pytester.path.glob("**/constants"))


def test_warning_of_torch_about_its_own_speed_is_no_fault(pytester: pytest.Pytester) -> None:
    options = ("-W", "error", "--qtune-fuzz=conv1d", "-k", "kernels")
    pytester.runpytest_subprocess(*options).assert_outcomes(passed=1)


def test_ids_and_keywords_choose_items(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_mine="def test_mine(): pass")
    options = ("--qtune-fuzz=relu,ab*", "--qtune-fuzz-examples=1", "--collect-only", "-q")
    all_of_them = pytester.runpytest(*options).stdout.lines
    assert [line for line in all_of_them if "::" in line] == [
        "test_mine.py::test_mine",
        "qtune-fuzz::abs[kernels]",
        "qtune-fuzz::abs[integers]",
        "qtune-fuzz::relu[kernels]",
        "qtune-fuzz::relu[integers]",
    ]
    one = pytester.runpytest("qtune-fuzz::abs[kernels]", *options).stdout.lines
    assert [line for line in one if "::" in line] == ["qtune-fuzz::abs[kernels]"]
    some = pytester.runpytest("qtune-fuzz", "-k", "relu and kernels", *options).stdout.lines
    assert [line for line in some if "::" in line] == ["qtune-fuzz::relu[kernels]"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--qtune-fuzz=rleu"], "*no operator 'rleu'; close matches: relu*"),
        (
            ["--qtune-fuzz=segment_lut"],
            "*segment_lut is left out: *the decorator qtune.testing.fuzz",
        ),
        (["--qtune-fuzz=zzz*"], "*no operator 'zzz[*]'*"),
        (["qtune-fuzz::add[kernels]", "--qtune-fuzz=relu"], "*qtune-fuzz::add?kernels?: no such*"),
        (["--qtune-fuzz", "qtune-fuzz"], "*write the id first: pytest qtune-fuzz --qtune-fuzz*"),
        (["--qtune-fuzz=relu", "--qtune-fuzz-examples=0"], "*'0' is not legal*"),
    ],
)
def test_wrong_value_is_a_usage_error(
    pytester: pytest.Pytester, arguments: list[str], message: str
) -> None:
    result = pytester.runpytest(*arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([message])


def test_failure_is_a_script_that_shows_the_same_difference(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(BROKEN)
    result = pytester.runpytest_subprocess("--qtune", "--qtune-fuzz=neg", "-k", "kernels")
    result.assert_outcomes(failed=1)
    lines = result.stdout.lines
    (found,) = [line for line in lines if line.startswith("output 0")]
    (again,) = [line for line in lines if line.startswith("run again: ")]
    start = next(i for i, line in enumerate(lines) if line == "import torch")
    end = next(i for i, line in enumerate(lines) if line.startswith("print("))
    script = "import conftest\n" + "\n".join(lines[start : end + 1])
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=pytester.path
    )
    assert run.stdout.strip() == found, run.stderr
    assert again == "run again: pytest --qtune --qtune-fuzz=neg 'qtune-fuzz::neg[kernels]'"


def test_items_are_shared_out_to_workers_and_repeated_by_last_failed(
    pytester: pytest.Pytester,
) -> None:
    pytester.makeconftest(BROKEN)
    options = ("--qtune-fuzz=neg,relu", "--qtune-fuzz-examples=3")
    result = pytester.runpytest_subprocess(*options, "-n", "2")
    result.assert_outcomes(passed=2, failed=2)
    result = pytester.runpytest_subprocess(*options, "--lf")
    result.assert_outcomes(failed=2, deselected=2)


def test_int16_is_left_out_on_a_march_without_it(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest(
        "--qtune-fuzz=relu", "--qtune-march=bernoulli2", "--qtune-fuzz-examples=3"
    )
    result.assert_outcomes(passed=2)
