"""Under xdist: every mode, a crashed worker, results that arrive once, threads per worker."""

from __future__ import annotations

import json

import pytest

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


@pytest.mark.parametrize(
    "args",
    [
        ("-n0",),
        ("-p", "no:xdist"),
        ("-n2", "--dist=load"),
        ("-n2", "--dist=loadscope"),
        ("-n2", "--dist=loadfile"),
        ("-n2", "--dist=loadgroup"),
        ("-n2", "--dist=worksteal"),
    ],
    ids=" ".join,
)
def test_every_mode_gives_the_same_report(project: pytest.Pytester, args: tuple[str, ...]) -> None:
    result = project.runpytest("--qtune", "--qtune-json=q.json", *args)
    result.assert_outcomes(passed=2, failed=1)
    data = json.loads((project.path / "q.json").read_text())
    assert data["totals"] == {
        "caught": 0,
        "checks": 2,
        "errors": 0,
        "gates": 0,
        "gates_failed": 0,
        "gates_skipped": 0,
        "other_failures": 0,
        "failed": 1,
        "models": 1,
    }
    assert "INTERNALERROR" not in result.stdout.str()


def test_crashed_worker_is_listed_and_the_rest_reported(project: pytest.Pytester) -> None:
    project.makepyfile(test_net=CRASH)
    result = project.runpytest("--qtune", "-n2", "--qtune-html=q.html", "--qtune-json=q.json")
    result.stdout.fnmatch_lines(["crashed worker gw*", "qtune: 2 checks on 1 model(s), 0 failed*"])
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    data = json.loads((project.path / "q.json").read_text())
    assert len(data["crashed_workers"]) == 1
    assert "Crashed workers" in (project.path / "q.html").read_text()


def test_threads_are_shared_between_workers(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    pytester.makepyfile(
        """
        import os
        from pytest_qtune import threads

        def test_threads(pytestconfig):
            assert os.environ["OMP_NUM_THREADS"] == str(threads.per_process(pytestconfig))
        """
    )
    for args in (("-n2",), ("--qtune-threads=3",)):
        pytester.runpytest_subprocess("--qtune", *args).assert_outcomes(passed=1)


@pytest.mark.parametrize(("cores", "workers", "threads"), [(8, 2, 4), (8, 3, 2), (2, 4, 1)])
def test_threads_per_worker(
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    cores: int,
    workers: int,
    threads: int,
) -> None:
    config = pytester.parseconfig()
    config.workerinput = {"workercount": workers}
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(cores)), raising=False)
    assert threads.per_process(config) == threads
