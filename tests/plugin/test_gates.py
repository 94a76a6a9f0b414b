"""Gates as test reports: terminal, JUnit, JSON, exit status; complete, partial and stopped runs."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from typing import Any

import pytest

MODES = [("-n0",), ("-p", "no:xdist"), ("-n2",)]


@pytest.fixture
def project(project: pytest.Pytester) -> pytest.Pytester:
    """Two models: net has sqnr_db 31.5 and 21.25, tail has cpu_ops 0."""
    project.makepyfile(
        test_net="""
        from checks import check

        def test_first():
            check(True, sqnr_db=31.5)

        def test_second():
            check(True, sqnr_db=21.25)

        def test_tail():
            check(True, model="tail", cpu_ops=0)
        """
    )
    return project


def gates(project: pytest.Pytester, *expressions: str) -> None:
    lines = "".join(f"    {text}\n" for text in expressions)
    project.makeini(f"[pytest]\nqtune_gates =\n{lines}")


def outcomes(project: pytest.Pytester, *args: str) -> dict[str, str]:
    project.runpytest("--qtune", "--qtune-json=q.json", *args)
    return {gate["nodeid"]: gate["outcome"] for gate in data(project)["gates"]}


def data(project: pytest.Pytester) -> Any:
    return json.loads((project.path / "q.json").read_text())


@pytest.mark.parametrize("mode", MODES, ids=" ".join)
def test_failed_gate_is_a_failed_report_everywhere(
    project: pytest.Pytester, mode: tuple[str, ...]
) -> None:
    gates(project, "min_sqnr_db>=25", "cpu_ops==0")
    result = project.runpytest("--qtune", "--junitxml=j.xml", "--qtune-json=q.json", *mode)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(passed=4, failed=1)
    result.stdout.fnmatch_lines(
        [
            "*_ qtune-gate::net?min_sqnr_db? _*",
            "E   net: min_sqnr_db: got 21.25, limit >= 25 (consistency of test_net.py::test_s*",
            "gates:",
            "*model*metric*got*limit*test",
            "*FAIL*net*min_sqnr_db*21.25*>= 25*test_second",
            "*ok*tail*cpu_ops*0*== 0*test_tail",
            "qtune: 3 checks on 2 model(s), 0 failed; 2 gate(s), 1 failed",
            "FAILED qtune-gate::net?min_sqnr_db? - net: min_sqnr_db: got 21.25, limit*",
        ]
    )
    cases = {c.get("name"): c for c in ET.parse(project.path / "j.xml").getroot().iter("testcase")}
    assert cases["net[min_sqnr_db]"].get("classname") == "qtune-gate"
    failure = cases["net[min_sqnr_db]"].find("failure")
    assert failure is not None
    assert "got 21.25, limit >= 25" in failure.get("message", "")
    assert cases["tail[cpu_ops]"].find("failure") is None
    assert [gate["outcome"] for gate in data(project)["gates"]] == ["failed", "passed"]
    assert "INTERNALERROR" not in result.stdout.str()


def test_gate_that_holds_leaves_the_exit_status(project: pytest.Pytester) -> None:
    gates(project, "min_sqnr_db>=20", "net: max_sqnr_db<=32")
    result = project.runpytest("--qtune")
    assert result.ret == pytest.ExitCode.OK
    result.assert_outcomes(passed=5)


def test_without_the_flag_no_gate_is_evaluated(project: pytest.Pytester) -> None:
    gates(project, "min_sqnr_db>=99")
    result = project.runpytest()
    assert result.ret == pytest.ExitCode.OK
    result.assert_outcomes(passed=3)


def test_gates_of_the_command_line_replace_those_of_the_ini_file(project: pytest.Pytester) -> None:
    gates(project, "min_sqnr_db>=99")
    found = outcomes(project, "--qtune-gates=cpu_ops==0", "--qtune-gates", "sqnr_db > 20")
    assert found == {"qtune-gate::net[sqnr_db]": "passed", "qtune-gate::tail[cpu_ops]": "passed"}


@pytest.mark.parametrize(
    ("ini", "args", "message"),
    [
        ("sqnr_db=>25", (), "*ini key qtune_gates: 'sqnr_db=>25' is no gate (write >= for =>)*"),
        ("", ("--qtune-gates=x",), "*command line option --qtune-gates: 'x' is no gate*expected*"),
    ],
)
def test_bad_gate_stops_the_run_at_its_start(
    project: pytest.Pytester, ini: str, args: tuple[str, ...], message: str
) -> None:
    gates(project, ini)
    result = project.runpytest(*args)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([message])


def test_missing_number_fails_a_complete_run(project: pytest.Pytester) -> None:
    gates(project, "top1_drop_pp<=0.5")
    result = project.runpytest("--qtune")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*FAIL*[*]*top1_drop_pp*missing*<= 0.5*"])


def test_nan_fails(project: pytest.Pytester) -> None:
    project.makepyfile(
        test_net="""
        from checks import check

        def test_nan():
            check(True, sqnr_db=float("nan"))
            check(True, sqnr_db=40.0)
        """
    )
    gates(project, "sqnr_db>=25")
    assert outcomes(project) == {"qtune-gate::net[sqnr_db]": "failed"}
    assert data(project)["gates"][0]["value"] == "NaN"


def test_run_without_any_check_fails_by_name(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_plain(): pass")
    gates(pytester, "sqnr_db>=25")
    result = pytester.runpytest("--qtune")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["FAILED qtune-gate::*sqnr_db* - *no check of this run*"])


def test_project_without_tests_fails_by_name(pytester: pytest.Pytester) -> None:
    gates(pytester, "sqnr_db>=25")
    assert pytester.runpytest("--qtune").ret == pytest.ExitCode.TESTS_FAILED


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        (("test_net.py::test_tail",), "single tests were named"),
        (("-k", "tail"), "-k"),
        (("--deselect", "test_net.py::test_first", "--deselect", "test_net.py::test_second"),
         "--deselect"),
    ],
)  # fmt: skip
def test_partial_run_skips_missing_numbers_with_the_reason(
    project: pytest.Pytester, args: tuple[str, ...], reason: str
) -> None:
    gates(project, "sqnr_db>=20", "cpu_ops==0")
    assert outcomes(project, *args) == {
        "qtune-gate::*[sqnr_db]": "skipped",
        "qtune-gate::tail[cpu_ops]": "passed",
    }
    skipped = data(project)["gates"][0]
    assert skipped["message"].endswith(f"(partial run: {reason})")


@pytest.mark.parametrize("workers", ["0", "2"])
def test_tests_that_a_plugin_deselects_make_a_run_partial(
    project: pytest.Pytester, workers: str
) -> None:
    project.makeconftest(
        """
        def pytest_collection_modifyitems(config, items):
            config.hook.pytest_deselected(items=items[:2])
            del items[:2]
        """
    )
    gates(project, "sqnr_db>=20")
    assert outcomes(project, "-n", workers) == {"qtune-gate::*[sqnr_db]": "skipped"}
    assert data(project)["gates"][0]["message"].endswith("(partial run: 2 deselected)")


@pytest.mark.parametrize("args", [("-x",), ("--maxfail=1",), ("-n2", "--maxfail=1"), ("--sw",)])
def test_stopped_run_skips_what_it_did_not_reach(
    project: pytest.Pytester, args: tuple[str, ...]
) -> None:
    project.makepyfile(
        test_net="""
        from checks import check
        import time, pytest

        def test_bad():
            check(False, sqnr_db=21.25)

        @pytest.mark.parametrize("i", range(20))
        def test_others(i):
            time.sleep(0.2)

        def test_tail():
            check(True, cpu_ops=0)
        """
    )
    gates(project, "sqnr_db>=20", "cpu_ops==0")
    found = outcomes(project, *args)
    assert found["qtune-gate::net[sqnr_db]"] == "passed"
    assert found["qtune-gate::*[cpu_ops]"] == "skipped"
    assert "the run stopped early" in data(project)["gates"][0]["message"]


def test_failed_gate_does_not_stop_or_look_like_stopping(project: pytest.Pytester) -> None:
    gates(project, "sqnr_db>=99", "cpu_ops==9")
    result = project.runpytest("--qtune", "-x")
    result.assert_outcomes(passed=3, failed=2)
    result.stdout.no_fnmatch_line("*stopping after*")


def test_last_failed_never_hears_of_a_gate(project: pytest.Pytester) -> None:
    gates(project, "min_sqnr_db>=25")
    project.runpytest("--qtune").assert_outcomes(passed=3, failed=1)
    assert not (project.path / ".pytest_cache" / "v" / "cache" / "lastfailed").exists()
    result = project.runpytest("--qtune", "--lf")
    result.assert_outcomes(passed=3, failed=1)
    result.stdout.fnmatch_lines(["run-last-failure: no previously failed tests, *"])


def test_stepwise_never_hears_of_a_gate(project: pytest.Pytester) -> None:
    gates(project, "min_sqnr_db>=25")
    project.runpytest("--qtune", "--sw").assert_outcomes(passed=3, failed=1)
    again = project.runpytest("--qtune", "--sw")
    again.assert_outcomes(passed=3, failed=1)
    again.stdout.no_fnmatch_line("*continuing from this test*")


@pytest.mark.parametrize("flag", ["--collect-only", "--setup-plan"])
def test_runs_that_run_nothing_have_no_gates(project: pytest.Pytester, flag: str) -> None:
    gates(project, "min_sqnr_db>=25")
    result = project.runpytest("--qtune", flag)
    assert result.ret == pytest.ExitCode.OK
    result.stdout.no_fnmatch_line("*qtune-gate*")


def test_verbose_run_has_a_line_per_gate_behind_the_tests(project: pytest.Pytester) -> None:
    gates(project, "min_sqnr_db>=25", "cpu_ops==0", "top1>=1")
    result = project.runpytest("--qtune", "-v", "-k", "test")
    result.stdout.fnmatch_lines(
        [
            "test_net.py::test_tail PASSED*[[]100%]",
            "qtune-gate::[*][[]top1] SKIPPED",
            "qtune-gate::net[[]min_sqnr_db] FAILED",
            "qtune-gate::tail[[]cpu_ops] PASSED",
        ]
    )
    result.stdout.no_fnmatch_line("*133%*")


def test_progress_of_the_tests_ends_at_its_end(project: pytest.Pytester) -> None:
    gates(project, "min_sqnr_db>=25")
    project.runpytest("--qtune").stdout.fnmatch_lines(["test_net.py ...*[[]100%]"])


def test_without_a_terminal_gates_decide_too(project: pytest.Pytester) -> None:
    gates(project, "min_sqnr_db>=25")
    assert project.runpytest("--qtune", "-p", "no:terminal").ret == pytest.ExitCode.TESTS_FAILED


def test_numbers_of_a_crashed_run_still_count(project: pytest.Pytester) -> None:
    project.makepyfile(
        test_net="""
        import os
        from checks import check

        def test_before():
            check(True, sqnr_db=21.25)

        def test_crash():
            os._exit(3)
        """
    )
    gates(project, "sqnr_db>=25")
    assert outcomes(project, "-n2") == {"qtune-gate::net[sqnr_db]": "failed"}
    assert len(data(project)["crashed_workers"]) == 1
