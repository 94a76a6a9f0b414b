"""The terminal: a table per model with --qtune, one line under -q, nothing when unused."""

from __future__ import annotations

import json

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
            "E*worst of 1 bad layers (ATOL):",
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
    result.stdout.fnmatch_lines(["qtune: 1 checks on 1 model(s), 0 failed, 1 other test(s) failed"])
    page = (project.path / "q.html").read_text()
    assert "All checks passed." not in page
    assert "No check failed, but other tests of this run did." in page


def test_a_file_that_cannot_be_collected_is_counted(project: pytest.Pytester) -> None:
    project.makepyfile(test_broken="import nothing_of_this_name")
    project.runpytest("--qtune", "--qtune-json=q.json", "--continue-on-collection-errors")
    data = json.loads((project.path / "q.json").read_text())
    assert data["totals"]["other_failures"] == 1
    assert "nothing_of_this_name" in data["other_failures"][0]["error"]
