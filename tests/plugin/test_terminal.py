"""The terminal: a table per model with --qtune, one line under -q, nothing when unused."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest


def test_table_lists_failures_first(project: pytest.Pytester) -> None:
    result = project.runpytest("--qtune")
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(
        [
            "net:",
            "*check*where*got*limit*test",
            "*FAIL*consistency*head*0.5*<= 0.3*test_bad",
            "*ok*consistency*head*0.2*<= 0.3*test_good",
            "qtune: 2 checks on 1 model(s), 1 failed",
        ]
    )


def test_quiet_run_prints_one_line(project: pytest.Pytester) -> None:
    result = project.runpytest("--qtune", "-q", "--qtune-json=q.json")
    lines = [line for line in result.outlines if line.startswith("qtune:")]
    assert lines == ["qtune: 2 checks on 1 model(s), 1 failed"]
    result.stdout.no_fnmatch_line("net:")


def test_without_the_flag_tests_assert_and_nothing_is_reported(project: pytest.Pytester) -> None:
    result = project.runpytest()
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.no_fnmatch_line("*qtune: 2 checks*")


def test_no_table_when_no_test_used_qtune(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_plain(): pass")
    result = pytester.runpytest("--qtune")
    result.stdout.no_fnmatch_line("*checks on*")


def test_failure_message_says_what_to_do(project: pytest.Pytester) -> None:
    result = project.runpytest()
    result.stdout.fnmatch_lines(
        [
            "E*AssertionError: consistency: head: got 0.5, limit <= 0.3",
            "E*worst of 1 bad layer (ATOL):",
            "E*head: 0.5, qint8, shape (1, 8), scale 0.02, 25.00% of the codes differ, 50.00% s*",
            "E*first bad layer in order of execution: head*",
            "E*Raise head to qint16.",
            "E*run again: pytest --qtune test_net.py::test_bad",
        ]
    )


def test_failure_that_its_test_expects_is_no_failure_of_the_run(project: pytest.Pytester) -> None:
    project.makepyfile(
        test_net="""
        import pytest
        from checks import check

        def test_expects():
            with pytest.raises(AssertionError):
                check(False)

        @pytest.mark.xfail
        def test_known():
            check(False)
        """
    )
    result = project.runpytest("--qtune")
    result.assert_outcomes(passed=1, xfailed=1)
    result.stdout.fnmatch_lines(
        [
            "*caught*test_expects",
            "*caught*test_known",
            "qtune: 2 checks on 1 model(s), 0 failed, 2 failed as their tests expect",
        ]
    )


LISTED = """
    import pytest
    from checks import check

    def test_good():
        check(True, got="0.2")

    def test_listed():
        raise ValueError("1 operator(s) can't be exported:\\n\\n  head: reason\\n  tail: reason")
"""


def test_an_error_that_announces_a_list_is_shown_with_its_first_item(
    project: pytest.Pytester,
) -> None:
    project.makepyfile(test_net=LISTED)
    project.runpytest("--qtune", "--qtune-json=q.json")
    data = json.loads((project.path / "q.json").read_text())
    (other,) = data["other_failures"]
    assert other["nodeid"] == "test_net.py::test_listed"
    assert other["error"] == "ValueError: 1 operator(s) can't be exported: head: reason"


@pytest.mark.parametrize("workers", ["0", "2"])
def test_other_failed_tests_of_the_run_are_counted(project: pytest.Pytester, workers: str) -> None:
    project.makepyfile(test_net=LISTED)
    result = project.runpytest("--qtune", "--qtune-html=q.html", "-n", workers)
    result.stdout.fnmatch_lines(["qtune: 1 check on 1 model(s), 0 failed, 1 other test(s) failed"])
    page = (project.path / "q.html").read_text()
    assert "All checks passed." not in page
    assert "No check failed, but other tests of this run did." in page


def test_a_file_that_cannot_be_collected_is_counted(project: pytest.Pytester) -> None:
    project.makepyfile(test_broken="import nothing_of_this_name")
    project.runpytest("--qtune", "--qtune-json=q.json", "--continue-on-collection-errors")
    data = json.loads((project.path / "q.json").read_text())
    assert data["totals"]["other_failures"] == 1
    assert "nothing_of_this_name" in data["other_failures"][0]["error"]


def lines_of(result: pytest.RunResult, title: str) -> list[str]:
    """The lines of one table."""
    start = result.outlines.index(f"{title}:") + 1
    return [line for line in result.outlines[start:] if line.startswith("  ")]


def test_worst_first_by_distance_from_the_limit(project: pytest.Pytester) -> None:
    project.makepyfile(
        test_net="""
        import pytest
        from checks import check

        @pytest.mark.parametrize("atol", [0.1, 0.29])
        def test_good(atol):
            check(True, atol=atol)

        @pytest.mark.parametrize("atol", [0.31, 3.0, float("nan")])
        def test_bad(atol):
            check(False, atol=atol)
        """
    )
    table = lines_of(project.runpytest("--qtune"), "net")
    assert [line.split()[-1] for line in table[1:6]] == [
        "test_bad[nan]",
        "test_bad[3.0]",
        "test_bad[0.31]",
        "test_good[0.29]",
        "test_good[0.1]",
    ]


BASELINE = """
    from qtune.testing.record import conclude
    from qtune.testing.result import AssertionResult

    def test_one():
        conclude(AssertionResult("baseline", "m", True, "x", "31.2", "drop <= 0.5", baseline=BASE))
        conclude(AssertionResult("consistency", "m", True, "x", "1", "2"))
"""


def test_column_of_baselines_only_where_one_is_known(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(BASELINE.replace("BASE", "'31.5'"))
    head, first, second = lines_of(pytester.runpytest("--qtune"), "m")[:3]
    assert head.split() == ["check", "where", "got", "limit", "baseline", "test"]
    assert "31.5" in first
    assert first.index("31.5") == head.index("baseline")
    assert "consistency" in second
    pytester.makepyfile(BASELINE.replace("BASE", "''"))
    head = lines_of(pytester.runpytest("--qtune"), "m")[0]
    assert head.split() == ["check", "where", "got", "limit", "test"]


LONG = """
    from checks import check

    def test_a_name_that_is_so_long_that_no_terminal_of_eighty_columns_has_room_for_it():
        check(True, got="0.123456", model="卷积" * 30)
"""


@pytest.mark.parametrize("width", [80, 60])
def test_wide_names_are_cut_at_the_width_of_the_terminal(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    project.makepyfile(test_net=LONG)
    monkeypatch.setenv("COLUMNS", str(width))
    (table,) = [line for line in project.runpytest("--qtune").outlines if line.startswith("  ok")]
    assert len(table) <= width
    assert "0.123456" in table
    assert table.endswith("om_for_it")
    assert "  test" in table


def test_names_are_whole_where_there_is_no_terminal(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.makepyfile(test_net=LONG)
    monkeypatch.delenv("COLUMNS", raising=False)
    project.runpytest("--qtune").stdout.fnmatch_lines(["*eighty_columns_has_room_for_it"])


def test_control_characters_of_a_name_stay_in_their_line(project: pytest.Pytester) -> None:
    project.makepyfile(
        test_net="""
        from checks import check

        def test_odd():
            check(True, model="a\\nb\\x1b[31m")
        """
    )
    result = project.runpytest("--qtune")
    result.stdout.fnmatch_lines(["a\\nb\\x1b[[]31m:"])


def test_colours_follow_pytest(project: pytest.Pytester) -> None:
    result = project.runpytest("--qtune", "--color=yes")
    red = [line for line in result.outlines if line.startswith("\x1b[31m  FAIL")]
    assert len(red) == 1
    assert "\x1b[31m  FAIL" not in project.runpytest("--qtune", "--color=no").stdout.str()


def test_quiet_run_with_gates_prints_one_line(project: pytest.Pytester) -> None:
    result = project.runpytest("--qtune", "-q", "--qtune-gates=atol<=0.3", "--qtune-gates=x>=1")
    lines = [line for line in result.outlines if line.startswith("qtune:")]
    assert lines == ["qtune: 2 checks on 1 model(s), 1 failed; 2 gate(s), 2 failed"]
    assert "gates:" not in result.outlines


def test_run_without_a_terminal_plugin_ends_well(project: pytest.Pytester) -> None:
    result = project.runpytest("--qtune", "-p", "no:terminal", "--qtune-json=q.json")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert json.loads((project.path / "q.json").read_text())["totals"]["failed"] == 1


@pytest.mark.skipif(sys.platform == "win32", reason="no pseudo-terminals")
@pytest.mark.parametrize(("option", "is_shown"), [("-s", True), ("--capture=fd", False)])
def test_long_work_shows_its_progress_unless_output_is_captured(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, option: str, is_shown: bool
) -> None:
    import pty
    import termios

    monkeypatch.delenv("QTUNE_PROGRESS", raising=False)
    pytester.makepyfile(
        """
        from qtune.report.progress import progress

        def test_work():
            assert list(progress([1, 2], "calibrate", unit="batch")) == [1, 2]
        """
    )
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (40, 100))  # a bar takes the width that there is
    command = [sys.executable, "-m", "pytest", "--qtune", option, "-p", "no:xdist"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=theirs, check=False)
    os.write(theirs, b"end")  # so that reading does not wait where nothing was written
    text = os.read(ours, 1 << 16).decode()
    os.close(ours)
    os.close(theirs)
    assert done.returncode == 0
    assert ("calibrate: 100%" in text) == is_shown
    assert is_shown or text == "end"
