"""Baselines: what a run finds, and where it looks; one behaviour per test."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import NoReturn

import pytest

from pytest_qtune import baselines
from qtune.testing import baseline_file
from qtune.testing.baseline_file import BaselineFile, Entry

from .baseline_flow import HEAD, SEVERAL, TEST, Workflow


def test_missing_fails_by_name_and_writes_nothing(flow: Workflow) -> None:
    flow.measures(31.25)
    result = flow.run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "*baseline: sqnr_db: got 31.25, limit a baseline",
            f"*no baseline for {HEAD} in __qtune__/test_net.json",
            "*: pytest --qtune-update=new --qtune test_net.py::TestNet::test_head",
        ]
    )
    assert not flow.file.parent.exists()
    assert flow.statuses() == {HEAD: "missing"}


def test_created_by_an_update(flow: Workflow) -> None:
    flow.measures(31.25)
    result = flow.run("--qtune-update=new")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["qtune: baselines written to __qtune__/test_net.json: 1 created"])
    assert flow.stored() == {HEAD: 31.25}


@pytest.mark.parametrize(
    ("value", "status"), [(31.25, "equal"), (31.0, "within"), (30.5, "changed")]
)
def test_compared_with_and_without_qtune(stored: Workflow, value: float, status: str) -> None:
    stored.measures(value)
    assert stored.statuses() == {HEAD: status}
    assert stored.statuses("--qtune") == {HEAD: status}
    assert stored.run().ret == (status == "changed")
    assert stored.stored() == {HEAD: 31.25}


def test_changed_shows_baseline_and_limit_in_message_and_table(stored: Workflow) -> None:
    stored.measures(30.5)
    result = stored.run("--qtune")
    result.stdout.fnmatch_lines(
        [
            "*baseline: sqnr_db: got 30.5, limit >= 30.75",
            "*baseline 31.25, allowed >= 30.75",
            "*: pytest --qtune-update=all --qtune test_net.py::TestNet::test_head",
            "*check * baseline *",
            "*FAIL*sqnr_db*30.5*>= 30.75*31.25*",
        ]
    )


LOST = """
class TestNet:
    def test_head({arguments}):
        pass
"""


@pytest.mark.parametrize("arguments", ["self", "self, qtune_baseline"])
def test_lost_entry_fails_by_name(stored: Workflow, arguments: str) -> None:
    stored.test(LOST.format(arguments=arguments))
    result = stored.run("--qtune")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "*baseline: sqnr_db: got not asked for, limit asked for by its test",
            "*TestNet.test_head ended without asking for sqnr_db, which __qtune__/*",
            "*FAIL*sqnr_db*not asked for*",
        ]
    )
    assert stored.statuses() == {HEAD: "lost"}
    stored.run("--qtune-update=new").assert_outcomes(failed=1)
    result = stored.run("--qtune-update=all")
    result.assert_outcomes(passed=1)
    assert stored.stored() == {}


@pytest.mark.parametrize(
    "body", ["pytest.skip()", "raise ValueError", "pytest.xfail()", "pytest.fail()"]
)
def test_a_test_that_ends_early_loses_nothing(stored: Workflow, body: str) -> None:
    stored.test(f"import pytest\nclass TestNet:\n    def test_head(self):\n        {body}\n")
    assert "lost" not in stored.statuses("--qtune-update=all").values()
    assert stored.stored() == {HEAD: 31.25}


def test_stale_names_field_and_values_and_the_update(stored: Workflow) -> None:
    call = "check('x', 1.0, identity={'march': '%s'})"
    stored.test(f"def test_a(qtune_baseline): qtune_baseline.{call % 'nash-e'}")
    stored.run("--qtune-update")
    stored.test(f"def test_a(qtune_baseline): qtune_baseline.{call % 'nash-m'}")
    result = stored.run("--qtune")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "*stale baseline for test_a::x in __qtune__/test_net.json:",
            "*  march was nash-e, is now nash-m",
            "*: pytest --qtune-update=all --qtune test_net.py::test_a",
        ]
    )
    assert stored.statuses("--qtune-update=test_a") == {"test_a::x": "updated"}
    stored.run().assert_outcomes(passed=1)


def test_another_environment_is_a_note(stored: Workflow) -> None:
    entry = BaselineFile.read(stored.file).get("TestNet.test_head", "sqnr_db")
    assert entry is not None
    older = Entry("metric", 31.25, {"max_drop": 0.5}, "higher", environment={"torch": "1.0"})
    baseline_file.write(stored.file, {"TestNet.test_head": {"sqnr_db": older}})
    stored.run("--qtune-json=q.json").assert_outcomes(passed=1)
    row = json.loads((stored.pytester.path / "q.json").read_text())["baselines"][0]
    assert row["note"] == f"measured elsewhere: torch 1.0 -> {entry.environment['torch']}"


GROUPS = """
import pytest

@pytest.mark.xdist_group("a")
def test_a(qtune_baseline):
    qtune_baseline.check("x", 1, higher_is_better=True)

@pytest.mark.xdist_group("b@c")
@pytest.mark.parametrize("p", ["d@e"])
def test_b(qtune_baseline, p):
    qtune_baseline.check("x", 2, higher_is_better=True)
"""


def test_keys_are_the_same_under_loadgroup(flow: Workflow) -> None:
    flow.test(GROUPS)
    flow.run("--qtune-update", "-n2", "--dist=loadgroup").assert_outcomes(passed=2)
    assert flow.stored() == {"test_a::x": 1, "test_b[d@e]::x": 2}
    text = flow.file.read_text()
    assert set(flow.statuses().values()) == {"equal"}
    assert set(flow.statuses("--qtune-update").values()) == {"equal"}
    assert flow.file.read_text() == text


def test_the_same_class_and_function_in_two_modules_are_two(flow: Workflow) -> None:
    for name, value in (("a/test_net.py", 1), ("b/test_net.py", 2), ("b/test_more.py", 3)):
        flow.test(TEST.format(value=value), name)
    flow.run("--qtune-update", "--import-mode=importlib").assert_outcomes(passed=3)
    found = {
        path.relative_to(flow.pytester.path).as_posix(): BaselineFile.read(path)
        .entries["TestNet.test_head"]["sqnr_db"]
        .value
        for path in flow.pytester.path.rglob("__qtune__/*.json")
    }
    assert found == {
        "a/__qtune__/test_net.json": 1,
        "b/__qtune__/test_net.json": 2,
        "b/__qtune__/test_more.json": 3,
    }


def test_a_name_that_is_checked_twice_is_one_error(flow: Workflow) -> None:
    flow.test(SEVERAL.format(a=1, b=2, more="qtune_baseline.check('x', 2)"))
    result = flow.run("--qtune-update")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        ["E*ArgumentError: test_b checked the baseline 'x' twice; give each value a name*"]
    )
    assert flow.stored() == {"test_a::x": 1}


ODD = """
import pytest

@pytest.mark.parametrize("p", ["a/b::c", "ü", "[x]", 'say "no"', "\\n", "", {}, [1], object()])
def test_odd(qtune_baseline, p):
    qtune_baseline.check("x::y", 1)

@pytest.fixture(scope="class", params=[{"march": "nash-e"}], ids=["nash-e"])
def net(request):
    return request.param

@pytest.mark.parametrize("bits", [8, 16], scope="class")
class TestOuter:
    class TestInner:
        def test_deep(self, qtune_baseline, net, bits):
            qtune_baseline.check("x", bits)
"""


def test_parameters_of_every_kind_are_keys(flow: Workflow) -> None:
    flow.test(ODD)
    flow.run("--qtune-update").assert_outcomes(passed=11)
    assert len(flow.stored()) == 11
    assert flow.stored()["TestOuter.TestInner.test_deep[nash-e-8]::x"] == 8
    assert set(flow.statuses().values()) == {"equal"}
    assert set(flow.statuses("--qtune-update=test_odd[[x]]").values()) == {"equal"}


def test_a_renamed_folder_keeps_its_baselines(flow: Workflow) -> None:
    flow.test(TEST.format(value=1), "old/test_net.py")
    flow.run("--qtune-update")
    (flow.pytester.path / "old").rename(flow.pytester.path / "new")
    assert flow.statuses() == {HEAD: "equal"}


def test_another_root_and_working_folder_see_the_same_baselines(
    stored: Workflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    below = stored.pytester.path / "below"
    below.mkdir()
    monkeypatch.chdir(below)
    stored.run("..", "--rootdir=.").assert_outcomes(passed=1)
    stored.measures(5.0)
    stored.run("..", "--rootdir=.", "--qtune-update").assert_outcomes(passed=1)
    assert stored.stored() == {HEAD: 5.0}


def test_a_folder_that_can_not_be_written_is_one_error(flow: Workflow) -> None:
    flow.measures(1)
    flow.file.parent.write_text("a file in its place")
    result = flow.run("--qtune-update")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        [
            "qtune: baselines can't be written to *test_net.json: *",
            f"qtune: missing baseline {HEAD} in *: not written: the file can't be written",
        ]
    )
    result.stdout.no_fnmatch_line("*INTERNALERROR*")


def test_a_folder_without_permission_is_one_error(
    stored: Workflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> NoReturn:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(baseline_file, "atomic_path", refuse)
    stored.run().assert_outcomes(passed=1)
    stored.measures(5.0)
    result = stored.run("--qtune-update")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["qtune: baselines can't be written to *Permission denied*"])


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_can_be_compared_with(stored: Workflow) -> None:
    stored.file.parent.chmod(0o555)
    try:
        stored.run("-p", "no:cacheprovider").assert_outcomes(passed=1)
        stored.measures(5.0)
        result = stored.run("--qtune-update")
        assert result.ret == pytest.ExitCode.TESTS_FAILED
        result.stdout.fnmatch_lines(["qtune: baselines can't be written to *Permission denied*"])
    finally:
        stored.file.parent.chmod(0o755)


def test_without_a_cache_all_is_the_same(flow: Workflow) -> None:
    flow.measures(1)
    flow.run("-p", "no:cacheprovider", "--qtune-update").assert_outcomes(passed=1)
    flow.run("-p", "no:cacheprovider").assert_outcomes(passed=1)
    assert flow.stored() == {HEAD: 1}


def test_a_checkout_with_line_ends_of_windows_is_equal_and_untouched(stored: Workflow) -> None:
    crlf = stored.file.read_bytes().replace(b"\n", b"\r\n")
    stored.file.write_bytes(crlf)
    assert stored.statuses("--qtune-update") == {HEAD: "equal"}
    assert stored.file.read_bytes() == crlf


@pytest.mark.parametrize("text", ["{", '{"schema": 99}', "<<<<<<< HEAD\n"])
def test_a_bad_file_fails_its_tests_and_is_not_overwritten(stored: Workflow, text: str) -> None:
    stored.file.write_text(text)
    result = stored.run("--qtune-update")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([f"E*BaselineError: {stored.file}*"])
    assert stored.file.read_text() == text


def test_a_bad_file_that_no_test_asks_for_is_said(stored: Workflow) -> None:
    stored.file.write_text("{")
    stored.test("def test_other(): pass")
    result = stored.run()
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines([f"qtune: {stored.file} is no JSON*"])


def test_a_test_without_baselines_sees_nothing_of_them(flow: Workflow) -> None:
    flow.test("def test_a(): pass")
    result = flow.run()
    result.stdout.no_fnmatch_line("qtune*")
    assert not flow.file.parent.exists()


def test_both_modules_look_into_the_same_folder() -> None:
    assert baselines.FOLDER == baseline_file.FOLDER
