"""``--qtune-fuzz``: items from the registry, chosen, run, reported and repeated."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
import torch

from pytest_qtune.fuzz import QtuneFuzz
from qtune.ops import registry

ROOT = Path(__file__).resolve().parents[2]
BROKEN = """
import os

if "PYTEST_XDIST_WORKER" in os.environ:
    from tests.plugin.test_fuzz import broken
    from qtune.ops import registry

    registry._kernels["qtune", "QNeg"] = broken()
"""
"""A conftest.py for workers."""


def broken() -> registry.HbirKernel:
    """A fast kernel of ``neg`` that gives back its input."""
    kernel = registry.kernels()["qtune", "QNeg"]
    return dataclasses.replace(kernel, fast=lambda node: lambda x: x)


@pytest.fixture
def _broken_neg(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry._kernels, ("qtune", "QNeg"), broken())


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
    torch.set_warn_always(True)  # else it comes once in a process
    try:
        pytester.runpytest(*options).assert_outcomes(passed=1)
    finally:
        torch.set_warn_always(False)


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


def test_without_hypothesis_the_extra_is_named(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find_spec(name: str) -> None:
        assert name == "hypothesis"

    monkeypatch.setattr("importlib.util.find_spec", find_spec)
    config = pytester.parseconfig()
    with pytest.raises(pytest.UsageError, match=r'pip install "qtune\[fuzz\]"'):
        QtuneFuzz(config)


def test_results_are_in_the_json_report(pytester: pytest.Pytester) -> None:
    options = ("--qtune-fuzz=relu", "--qtune-fuzz-examples=2")
    reports = ("--qtune", "--qtune-json=q.json", "--qtune-html=q.html", "--junitxml=j.xml")
    pytester.runpytest(*options, *reports).assert_outcomes(passed=2)
    data = json.loads((pytester.path / "q.json").read_text())
    assert data["other_failures"] == []
    cases = [case.get("name") for case in ET.parse(pytester.path / "j.xml").iter("testcase")]
    assert cases == ["relu[kernels]", "relu[integers]"]


@pytest.mark.usefixtures("_broken_neg")
def test_a_failing_item_is_in_the_json_report(pytester: pytest.Pytester) -> None:
    options = ("--qtune-fuzz=neg", "--qtune-fuzz-examples=2", "-k", "kernels")
    pytester.runpytest(*options, "--qtune", "--qtune-json=q.json").assert_outcomes(failed=1)
    data = json.loads((pytester.path / "q.json").read_text())
    named = {test["nodeid"] for test in (*data["tests"], *data["other_failures"])}
    assert named == {"qtune-fuzz::neg[kernels]"}


@pytest.mark.usefixtures("_broken_neg")
def test_failure_is_a_script_that_shows_the_same_difference(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest("--qtune", "--qtune-fuzz=neg", "-k", "kernels")
    result.assert_outcomes(failed=1)
    lines = result.stdout.lines
    (found,) = [line for line in lines if line.startswith("output 0")]
    (again,) = [line for line in lines if line.startswith("run again: ")]
    start = next(i for i, line in enumerate(lines) if line == "import torch")
    end = next(i for i, line in enumerate(lines) if line.startswith("print("))
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        exec("\n".join(lines[start : end + 1]), {"__name__": "__main__"})
    assert shown.getvalue().strip() == found
    assert again == "run again: pytest --qtune --qtune-fuzz=neg 'qtune-fuzz::neg[kernels]'"


@pytest.mark.usefixtures("_broken_neg")
def test_items_are_shared_out_to_workers_and_repeated_by_last_failed(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makeconftest(BROKEN)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("QTUNE_NATIVE", "off")  # each worker would compile them
    options = ("--qtune-fuzz=neg,relu", "--qtune-fuzz-examples=3")
    result = pytester.runpytest(*options, "-n", "2")
    result.assert_outcomes(passed=2, failed=2)
    result = pytester.runpytest(*options, "--lf")
    result.assert_outcomes(failed=2, deselected=2)


def test_int16_is_left_out_on_a_march_without_it(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest(
        "--qtune-fuzz=relu", "--qtune-march=bernoulli2", "--qtune-fuzz-examples=3"
    )
    result.assert_outcomes(passed=2)
