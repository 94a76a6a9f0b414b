"""Baselines from the first run to the last: one behaviour per test."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from pytest_qtune import baselines
from qtune.testing import baseline_file
from qtune.testing.baseline_file import BaselineFile, Entry

# in a process of its own a test says higher_is_better: asking the registry would load torch
TEST = """
class TestNet:
    def test_head(self, qtune_baseline):
        qtune_baseline.check("sqnr_db", {value}, max_drop=0.5, higher_is_better=True)
"""


class Workflow:
    """A project with one test file; each step edits it, runs it, or looks at what was stored."""

    def __init__(self, pytester: pytest.Pytester) -> None:
        self.pytester = pytester
        self.file = pytester.path / "__qtune__" / "test_net.json"

    def measures(self, value: float) -> None:
        """The one test measures ``value``."""
        self.test(TEST.format(value=value))

    def test(self, source: str, name: str = "test_net.py") -> None:
        path = self.pytester.path / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(source)
        for cached in path.parent.glob("__pycache__/*"):  # of the same size in the same second
            cached.unlink()

    def run(self, *args: str) -> pytest.RunResult:
        return self.pytester.runpytest(*args)

    def statuses(self, *args: str) -> dict[str, str]:
        """Run with a report; the status of each entry by key and name."""
        self.run("--qtune-json=q.json", *args)
        rows = json.loads((self.pytester.path / "q.json").read_text())["baselines"]
        return {f"{row['key']}::{row['name']}": row["status"] for row in rows}

    def stored(self) -> dict[str, Any]:
        """The stored values by key and name."""
        entries = BaselineFile.read(self.file).entries
        return {
            f"{key}::{name}": entry.value
            for key, named in entries.items()
            for name, entry in named.items()
        }


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


HEAD = "TestNet.test_head::sqnr_db"


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


RENAMED = TEST.format(value=31.25).replace("test_head", "test_tail") + "\ndef test_other(): pass\n"


def test_unused_entries_are_listed_and_do_not_fail(stored: Workflow) -> None:
    stored.test("def test_other(): pass\n")
    result = stored.run()
    result.assert_outcomes(passed=1)
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(
        [
            f"qtune: unused baseline {HEAD} in __qtune__/test_net.json: there is no such test",
            "qtune: remove unused baselines with: pytest --qtune-update=all test_net.py",
        ]
    )
    assert stored.statuses() == {HEAD: "unused"}
    assert stored.stored() == {HEAD: 31.25}


@pytest.mark.parametrize(
    "args",
    [
        ("-k", "tail"),
        ("test_net.py::TestNet",),
        ("-m", "not slow"),
        ("--deselect", "test_net.py::test_other"),
        ("--qtune-update=new",),
        ("--qtune-update=*",),
    ],
    ids=" ".join,
)
def test_unused_entries_stay_unless_all_of_a_whole_file_are_updated(
    stored: Workflow, args: tuple[str, ...]
) -> None:
    stored.test("import pytest\n" + RENAMED.replace("def test_o", "@pytest.mark.slow\ndef test_o"))
    stored.pytester.makeini("[pytest]\nmarkers = slow")
    update = () if "update" in args[0] else ("--qtune-update=all",)
    stored.run(*update, *args)
    assert stored.stored() == {HEAD: 31.25, "TestNet.test_tail::sqnr_db": 31.25}


@pytest.mark.parametrize("workers", ["-n0", "-n2"])
def test_unused_entries_are_removed_by_an_update_of_all(stored: Workflow, workers: str) -> None:
    stored.test(RENAMED)
    result = stored.run("--qtune-update=all", workers)
    result.stdout.fnmatch_lines(
        ["qtune: unused baseline TestNet.test_head::sqnr_db in *: there is no such test; removed"]
    )
    assert stored.stored() == {"TestNet.test_tail::sqnr_db": 31.25}


@pytest.mark.parametrize("args", [("-x",), ("--lf",)], ids=" ".join)
def test_a_run_that_stops_or_chooses_removes_nothing(
    stored: Workflow, args: tuple[str, ...]
) -> None:
    stored.test("def test_bad(): assert False\n" + RENAMED)
    stored.run()
    stored.run("--qtune-update=all", *args)
    assert HEAD in stored.stored()


def test_entries_of_a_skipped_test_are_listed_and_kept(stored: Workflow) -> None:
    stored.test("import pytest\n@pytest.mark.skip\n" + TEST.format(value=1).lstrip())
    result = stored.run("--qtune-update=all")
    result.stdout.fnmatch_lines([f"qtune: unused baseline {HEAD} in *: its test was skipped"])
    result.stdout.no_fnmatch_line("*remove unused*")
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


@pytest.mark.parametrize("value", ["true", "1", "yes"])
def test_an_update_is_refused_in_ci(
    flow: Workflow, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("CI", value)
    flow.measures(31.25)
    result = flow.run("--qtune-update")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        [f"ERROR: command line option --qtune-update: CI is set (CI={value})*--qtune-update-in-ci*"]
    )
    assert not flow.file.exists()


def test_an_update_in_ci_that_is_asked_for(flow: Workflow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    flow.measures(31.25)
    flow.run("--qtune-update", "--qtune-update-in-ci").assert_outcomes(passed=1)
    assert flow.stored() == {HEAD: 31.25}
    flow.run().assert_outcomes(passed=1)


SEVERAL = """
def test_a(qtune_baseline):
    qtune_baseline.check("x", {a}, higher_is_better=True)

def test_b(qtune_baseline):
    qtune_baseline.check("x", {b}, higher_is_better=True)
    {more}
"""


@pytest.mark.parametrize(
    ("update", "statuses", "stored"),
    [
        ("=new", ["kept", "equal", "created"], [1, 2, 3]),
        ("=all", ["updated", "equal", "created"], [0, 2, 3]),
        ("", ["updated", "equal", "created"], [0, 2, 3]),
        ("=test_a", ["updated", "equal", "missing"], [0, 2, None]),
        ("=test_b::*", ["kept", "equal", "created"], [1, 2, 3]),
        ("=*::x", ["updated", "equal", "missing"], [0, 2, None]),
    ],
)
def test_new_all_and_a_glob(
    flow: Workflow, update: str, statuses: list[str], stored: list[float | None]
) -> None:
    flow.test(SEVERAL.format(a=1, b=2, more=""))
    flow.run("--qtune-update=new")
    flow.test(SEVERAL.format(a=0, b=2, more='qtune_baseline.check("y", 3)'))
    names = ["test_a::x", "test_b::x", "test_b::y"]
    found = flow.statuses(f"--qtune-update{update}")
    assert [found.get(name) for name in names] == statuses
    assert [flow.stored().get(name) for name in names] == stored


def test_a_glob_that_fits_nothing_is_said(stored: Workflow) -> None:
    result = stored.run("--qtune-update=test_haed*")
    result.stdout.fnmatch_lines(
        ["qtune: --qtune-update=test_haed*: no baseline that a test asked for fits"]
    )


def test_a_parallel_update_loses_nothing(flow: Workflow) -> None:
    flow.test(
        """
import pytest

@pytest.mark.parametrize("i", range(20))
def test_many(qtune_baseline, i):
    qtune_baseline.check("x", i, higher_is_better=True)
    qtune_baseline.check("y", float(i), higher_is_better=True)
"""
    )
    result = flow.run("--qtune-update", "-n2")
    result.assert_outcomes(passed=20)
    result.stdout.fnmatch_lines(["qtune: baselines written to *: 40 created"])
    assert flow.stored() == {f"test_many[{i}]::{n}": i for i in range(20) for n in "xy"}


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


KILLED = """
import time
from pathlib import Path

def test_a(qtune_baseline):
    qtune_baseline.check("x", 2, higher_is_better=True)

def test_b(qtune_baseline):
    qtune_baseline.check("x", 2, higher_is_better=True)
    Path("reached").touch()
    time.sleep(60)
"""


def test_a_killed_run_writes_nothing(flow: Workflow) -> None:
    flow.test(KILLED.replace("2,", "1,").replace("60", "0"))
    flow.run("--qtune-update").assert_outcomes(passed=2)
    before = flow.file.read_bytes()
    flow.test(KILLED)
    (flow.pytester.path / "reached").unlink()
    command = [sys.executable, "-m", "pytest", "-p", "no:xdist", "--qtune-update"]
    run = subprocess.Popen(command, cwd=flow.pytester.path, stdout=subprocess.DEVNULL)
    try:
        for _ in until(60):
            if (flow.pytester.path / "reached").exists() or run.poll() is not None:
                break
    finally:
        run.kill()
    assert run.wait() == -signal.SIGKILL
    assert flow.file.read_bytes() == before
    assert [path.name for path in flow.file.parent.iterdir()] == ["test_net.json"]


def until(seconds: float) -> Iterator[None]:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        yield
        time.sleep(0.05)


def test_ctrl_c_writes_nothing(flow: Workflow) -> None:
    flow.measures(1)
    flow.test((flow.pytester.path / "test_net.py").read_text() + STOPPED)
    result = flow.pytester.runpytest_subprocess("--qtune-update", "-p", "no:xdist")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines([f"qtune: missing baseline {HEAD} in *: * was interrupted"])
    assert not flow.file.exists()


@pytest.mark.parametrize("workers", ["-n0", "-n1"])
def test_a_run_that_stops_at_a_failure_writes_what_had_passed(flow: Workflow, workers: str) -> None:
    flow.test(TEST.format(value=1) + "\ndef test_b(): assert 0\n" + TEST.replace("Net", "Other"))
    flow.run("--qtune-update", "-x", workers)
    assert flow.stored() == {HEAD: 1}


STOPPED = """
def test_stop():
    raise KeyboardInterrupt
"""


FAILING = """
import pytest

def test_after(qtune_baseline):
    qtune_baseline.check("x", 2, higher_is_better=True)
    assert {good}

@pytest.fixture
def broken():
    yield
    assert {good}

def test_teardown(qtune_baseline, broken):
    qtune_baseline.check("x", 2, higher_is_better=True)

@pytest.mark.xfail({good} is False, reason="")
def test_xfail(qtune_baseline):
    qtune_baseline.check("x", 2, higher_is_better=True)

def test_skip(qtune_baseline):
    qtune_baseline.check("x", 2, higher_is_better=True)
    {good} or pytest.skip()

def test_good(qtune_baseline):
    qtune_baseline.check("x", 2, higher_is_better=True)
"""


@pytest.mark.parametrize("workers", ["-n0", "-n2"])
def test_what_a_test_measured_that_does_not_pass_is_not_written(
    flow: Workflow, workers: str
) -> None:
    flow.test(FAILING.format(good=True).replace(", 2,", ", 1,"))
    flow.run("--qtune-update").assert_outcomes(passed=5)
    flow.test(FAILING.format(good=False))
    result = flow.run("--qtune-update", workers, "--qtune-json=q.json")
    result.stdout.fnmatch_lines(
        ["qtune: kept baseline test_after::x in *: not written: its test did not pass"]
    )
    names = ["after", "teardown", "xfail", "skip", "good"]
    assert [flow.stored()[f"test_{name}::x"] for name in names] == [1, 1, 1, 1, 2]
    rows = json.loads((flow.pytester.path / "q.json").read_text())["baselines"]
    assert sorted(row["status"] for row in rows) == ["kept"] * 4 + ["updated"]


RERUN = """
import pytest

class Again:
    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item, nextitem):
        from _pytest.runner import runtestprotocol
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for attempt in range(2):
            item._initrequest()
            reports = runtestprotocol(item, nextitem=nextitem, log=False)
            for report in reports:
                if attempt == 0 and report.when == "call":
                    report.outcome = "rerun"
                item.ihook.pytest_runtest_logreport(report=report)
        return True

def pytest_configure(config):
    config.pluginmanager.register(Again())
"""


def test_the_last_attempt_of_a_test_that_runs_again_counts(flow: Workflow) -> None:
    flow.pytester.makeconftest(RERUN)
    flow.test("runs = []\ndef test_a(qtune_baseline):\n    runs.append(1)\n"
              "    qtune_baseline.check('x', len(runs))\n")  # fmt: skip
    assert flow.statuses("--qtune-update") == {"test_a::x": "created"}
    assert flow.stored() == {"test_a::x": 2}


def test_two_sessions_at_once_are_merged(flow: Workflow) -> None:
    flow.test(SEVERAL.format(a=1, b=2, more="__import__('time').sleep(0.3)"))
    command = [sys.executable, "-m", "pytest", "-p", "no:xdist", "--qtune-update", "-k"]
    runs = [
        subprocess.Popen([*command, name], cwd=flow.pytester.path, stdout=subprocess.DEVNULL)
        for name in ("test_a", "test_b")
    ]
    assert [run.wait() for run in runs] == [0, 0]
    assert flow.stored() == {"test_a::x": 1, "test_b::x": 2}


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
    result.stdout.fnmatch_lines(["qtune: baselines can't be written to *test_net.json: *"])
    result.stdout.no_fnmatch_line("*INTERNALERROR*")


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
