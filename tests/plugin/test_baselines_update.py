"""``--qtune-update``: what it writes, when, and what becomes of unused entries."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from .baseline_flow import HEAD, SEVERAL, TEST, Workflow

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
        [
            "qtune: baselines written to *: 1 created, 1 removed",
            f"qtune: unused baseline {HEAD} in *: there is no such test; removed",
        ]
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


GONE = f"qtune: unused baseline {HEAD} in __qtune__/test_net.json: there is no such test file; *"


@pytest.mark.parametrize("workers", ["-n0", "-n2"])
def test_entries_of_a_renamed_file_are_listed_in_a_full_run_and_kept(
    stored: Workflow, workers: str
) -> None:
    (stored.pytester.path / "test_net.py").unlink()
    stored.test("def test_other(): pass\n", name="test_tail.py")
    result = stored.run(workers, "--qtune-update=all")
    result.stdout.fnmatch_lines([GONE])
    assert result.ret == pytest.ExitCode.OK
    assert stored.stored() == {HEAD: 31.25}
    assert stored.statuses(workers) == {HEAD: "unused"}
    for args in (("test_tail.py",), ("-k", "other"), ("test_tail.py::test_other",)):
        stored.run(workers, *args).stdout.no_fnmatch_line(GONE)


def test_gates_of_a_project_in_a_folder_below_are_none_without_a_test_file(
    stored: Workflow,
) -> None:
    below = stored.pytester.path / "below" / "__qtune__"
    below.mkdir(parents=True)
    kept = (stored.pytester.path / "__qtune__" / "test_net.json").read_text()
    (below / "gates.json").write_text(kept)
    stored.run("-n0").stdout.no_fnmatch_line("*there is no such test file*")
    (below / "test_net.json").write_text(kept)
    stored.run("-n0").stdout.fnmatch_lines(["*below/__qtune__/test_net.json: there is no such*"])


def test_a_mistyped_word_is_a_pattern_that_fits_nothing_and_says_so(stored: Workflow) -> None:
    said = "qtune: --qtune-update=nwe: no baseline that a test asked for fits; did you mean new?"
    for args in ((), ("-q",)):
        assert said in stored.run("--qtune-update=nwe", *args).outlines


def test_a_quiet_run_says_what_it_wrote(flow: Workflow) -> None:
    flow.measures(31.25)
    lines = flow.run("-q", "--qtune-update").outlines
    assert "qtune: baselines written to __qtune__/test_net.json: 1 created" in lines


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
