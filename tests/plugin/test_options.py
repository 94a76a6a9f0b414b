"""Options: ini and flag, order of precedence, bad values named with their source."""

from __future__ import annotations

import pytest

from pytest_qtune.options import OPTIONS


@pytest.mark.parametrize(
    ("args", "ini", "message"),
    [
        (
            ("--qtune-march=nash-x",),
            "",
            "*option --qtune-march: unknown march*nash-x*nash-e*",
        ),
        ((), "qtune_march = rocket", "*ini key qtune_march: unknown march*rocket*"),
        (("--qtune-update=",), "", "*--qtune-update: got nothing; give new, all*"),
        (("--qtune-html=",), "", "*--qtune-html: got nothing; give a path"),
        (("--qtune-json=.",), "", "*the json report: * is a folder; give the path of a file"),
        (("--qtune-json=tox.ini/x.json",), "", "*the json report: *can't be a folder*is a file"),
        (("--qtune-json=x", "--qtune-html=x"), "", "*another report is written to *x too"),
        (("--qtune-json=x", "--junitxml=x"), "", "*another report is written to *x too"),
        (("--qtune-update", "."), "", "*--qtune-update: it took the path '.' for its value*"),
        (("--qtune-threads=0",), "", "*--qtune-threads: '0' is not legal*auto*"),
        (
            (),
            "qtune_junit = all",
            "*qtune_junit: 'all' is not legal*testcase, suite, none*",
        ),
    ],
)
def test_bad_value_names_its_source_and_the_legal_ones(
    pytester: pytest.Pytester, args: tuple[str, ...], ini: str, message: str
) -> None:
    pytester.makeini(f"[pytest]\n{ini}\n")
    result = pytester.runpytest(*args)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([message])


def test_flag_beats_ini(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nqtune_march = bayes\n")
    result = pytester.runpytest("--qtune", "--qtune-march=NASH_E")
    result.stdout.fnmatch_lines(["qtune: march nash-e, * torch thread(s) per process"])


def test_marker_sets_the_march_of_its_test_only(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest
        from qtune import get_march
        from qtune.errors import MarchError

        @pytest.mark.qtune(march="nash-m")
        def test_marked():
            assert get_march() == "nash-m"

        def test_unmarked():
            with pytest.raises(MarchError):
                get_march()
        """
    )
    pytester.runpytest().assert_outcomes(passed=2)


WRONG_MARKERS = {
    "qtune(speed=3)": "*test_x: marker qtune takes march= only, got speed",
    "qtune('x')": "*test_x: marker qtune takes march= only, got 'x'",
    "qtune(march='vax')": "*marker qtune of *test_x: unknown march 'vax'*nash-e*",
    "qtune_slow(reason='y')": "*test_x: marker qtune_slow takes nothing, got reason",
}


@pytest.mark.parametrize("marker", WRONG_MARKERS)
def test_wrong_marker_arguments_are_usage_errors(pytester: pytest.Pytester, marker: str) -> None:
    pytester.makepyfile(f"import pytest\n@pytest.mark.{marker}\ndef test_x(): pass")
    result = pytester.runpytest()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([WRONG_MARKERS[marker]])


def test_wrong_marker_in_workers_is_the_same_usage_error(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("import pytest\n@pytest.mark.qtune(speed=3)\ndef test_x(): pass")
    result = pytester.runpytest("-n", "2")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([WRONG_MARKERS["qtune(speed=3)"]])
    result.stdout.no_fnmatch_line("*INTERNALERROR*")


def test_every_option_is_in_the_help(pytester: pytest.Pytester) -> None:
    text = pytester.runpytest("--help").stdout.str()
    for option in OPTIONS:
        assert not option.flag or option.flag_name in text
        assert not option.ini or option.ini_name in text


def test_a_report_that_can_not_be_written_leaves_that_of_the_terminal(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: object, text: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("qtune.report.files.write_text", full)
    result = project.runpytest_inprocess("--qtune", "--qtune-json=r.json", "-k", "good")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(passed=1, deselected=2)
    result.stdout.fnmatch_lines(
        ["qtune: 1 check on*0 failed", "qtune: no report written: *No space left on device"]
    )


def test_a_report_in_the_home_folder(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(project.path / "home"))
    project.runpytest_inprocess("--qtune-json=~/r.json", "-k", "good").assert_outcomes(
        passed=1, deselected=2
    )
    assert (project.path / "home" / "r.json").is_file()


def test_a_report_lies_where_pytest_was_called_wherever_tests_went(
    project: pytest.Pytester,
) -> None:
    (project.path / "deep").mkdir()
    project.makepyfile(test_moves="import os\ndef test_moves(): os.chdir('deep')")
    project.runpytest_inprocess("--qtune-json=r.json", "test_moves.py").assert_outcomes(passed=1)
    assert (project.path / "r.json").is_file()
