"""Under xdist: every mode, a crashed worker, results that arrive once, threads per worker."""

from __future__ import annotations

import json
import os

import pytest
from xdist.plugin import pytest_cmdline_main

from pytest_qtune import threads

CRASH = """
import os
from checks import check

def test_before():
    check(True)

def test_crash():
    os._exit(3)

def test_after():
    check(True)
"""


MODES = [
    ("-n0",),
    ("-p", "no:xdist"),
    ("-n1",),
    ("-n4", "--maxprocesses=2"),
    ("-n2", "--dist=no"),
    *[
        ("-n2", f"--dist={mode}")
        for mode in ("load", "loadscope", "loadfile", "loadgroup", "worksteal")
    ],
]
GROUPED = """
import pytest
from checks import check

class TestNet:
    @pytest.mark.xdist_group("one group")
    @pytest.mark.parametrize("case", ["a b", "x@y", "p[0]"])
    def test_good(self, case):
        check(True, got="0.2")

@pytest.mark.xdist_group(name="other")
def test_bad():
    check(False)

@pytest.mark.xdist_group("other")
def test_error():
    raise OSError("no such camera")

def test_without_qtune():
    pass
"""


@pytest.mark.parametrize("args", MODES, ids=" ".join)
def test_every_mode_gives_the_same_report(project: pytest.Pytester, args: tuple[str, ...]) -> None:
    project.makeini("[pytest]\nmarkers =\n    xdist_group: of xdist\n")
    project.makepyfile(test_net=GROUPED)
    result = project.runpytest("--qtune", "--qtune-json=q.json", *args)
    result.assert_outcomes(passed=4, failed=2)
    data = json.loads((project.path / "q.json").read_text())
    assert {name: count for name, count in data["totals"].items() if count} == {
        "checks": 4,
        "failed": 1,
        "models": 1,
        "other_failures": 1,
    }
    assert [(test["nodeid"], test["outcome"]) for test in data["tests"]] == [
        ("test_net.py::TestNet::test_good[a b]", "passed"),
        ("test_net.py::TestNet::test_good[p[0]]", "passed"),
        ("test_net.py::TestNet::test_good[x@y]", "passed"),
        ("test_net.py::test_bad", "failed"),
    ]
    assert [test["nodeid"] for test in data["other_failures"]] == ["test_net.py::test_error"]
    assert "INTERNALERROR" not in result.stdout.str()


def test_each_worker_runs_and_reports_everything_with_dist_each(project: pytest.Pytester) -> None:
    args = ("--dist=each", "--tx=2*popen", "--qtune-threads=1")
    result = project.runpytest("--qtune", "--qtune-json=q.json", *args)
    result.assert_outcomes(passed=4, failed=2)
    data = json.loads((project.path / "q.json").read_text())
    assert (data["totals"]["checks"], data["totals"]["failed"]) == (4, 2)


def test_a_worker_that_takes_the_place_of_a_crashed_one_reports_its_results(
    project: pytest.Pytester,
) -> None:
    """With one worker only, all that follows the crash runs in the second one."""
    project.makepyfile(test_net=CRASH)
    result = project.runpytest("--qtune", "-n1", "--qtune-json=q.json")
    result.assert_outcomes(passed=2, failed=1)
    data = json.loads((project.path / "q.json").read_text())
    assert [test["nodeid"] for test in data["tests"]] == [
        "test_net.py::test_after",
        "test_net.py::test_before",
    ]
    assert [test["nodeid"] for test in data["other_failures"]] == ["test_net.py::test_crash"]


def test_crashed_worker_is_listed_and_the_rest_reported(project: pytest.Pytester) -> None:
    project.makepyfile(test_net=CRASH)
    result = project.runpytest("--qtune", "-n2", "--qtune-html=q.html", "--qtune-json=q.json")
    result.stdout.fnmatch_lines(["crashed worker gw*", "qtune: 2 checks on 1 model(s), 0 failed*"])
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    data = json.loads((project.path / "q.json").read_text())
    assert len(data["crashed_workers"]) == 1
    assert "Crashed workers" in (project.path / "q.html").read_text()


THREADS = """
import json, os
import numpy, torch
from threadpoolctl import threadpool_info

def test_threads(worker_id, qtune_stages, pytestconfig):
    qtune_stages(torch.nn.ReLU(), [torch.ones(2)], march="nash-e")
    numpy.ones((300, 300)) @ numpy.ones((300, 300))
    found = {
        "OMP_NUM_THREADS": os.environ["OMP_NUM_THREADS"],
        "torch": torch.get_num_threads(),
        "pools": sorted(pool["num_threads"] for pool in threadpool_info()),
    }
    with open(pytestconfig.rootpath / f"{worker_id}.json", "w") as file:
        json.dump(found, file)
"""


def test_no_pool_of_a_worker_has_more_threads_than_its_share_of_the_cores(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of OpenMP (torch, oneDNN), of MKL, and of the BLAS that NumPy brings."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    pytester.makeconftest("import numpy, torch")  # read before any plugin knows how many workers
    pytester.makepyfile(test_threads=THREADS)
    args = ("--qtune", "--qtune-json=q.json", "--dist=each", "--tx=2*popen")
    pytester.runpytest_subprocess(*args).assert_outcomes(passed=2)
    share = max(1, len(os.sched_getaffinity(0)) // 2)
    for worker in ("gw0", "gw1"):
        found = json.loads((pytester.path / f"{worker}.json").read_text())
        assert found["OMP_NUM_THREADS"] == str(share)
        assert found["torch"] == share
        assert found["pools"]
        assert set(found["pools"]) == {share}
    data = json.loads((pytester.path / "q.json").read_text())
    assert data["settings"]["threads"] == share


def test_the_number_of_threads_can_be_given(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    pytester.makepyfile(
        test_threads=THREADS.replace("(worker_id, ", "(").replace("{worker_id}", "main")
    )
    pytester.runpytest_subprocess("--qtune", "--qtune-threads=3").assert_outcomes(passed=1)
    found = json.loads((pytester.path / "main.json").read_text())
    assert (found["OMP_NUM_THREADS"], found["torch"]) == ("3", 3)


@pytest.mark.parametrize(
    ("cores", "workers", "share"), [(8, 2, 4), (8, 3, 2), (2, 2, 1), (2, 8, 1), (1, 1, 1)]
)
def test_threads_per_worker(
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    cores: int,
    workers: int,
    share: int,
) -> None:
    config = pytester.parseconfig()
    config.workerinput = {"workercount": workers}
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(cores)), raising=False)
    assert threads.per_process(config) == share


@pytest.mark.parametrize(
    ("args", "share"),
    [
        ((), 8),
        (("-n0",), 8),
        (("-n2",), 4),
        (("-n8",), 1),
        (("--dist=each", "--tx=2*popen"), 4),
        (("--dist=each", "--tx=popen", "--tx=3*popen"), 2),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_header_counts_the_workers_as_they_do(
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    args: tuple[str, ...],
    share: int,
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(8)), raising=False)
    config = pytester.parseconfig(*args)
    pytest_cmdline_main(config)  # of xdist: what it makes of -n
    assert threads.per_process(config) == share
