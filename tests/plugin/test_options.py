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


@pytest.mark.parametrize("marker", ["qtune(speed=3)", "qtune('x')", "qtune(march='vax')"])
def test_wrong_marker_arguments_are_usage_errors(pytester: pytest.Pytester, marker: str) -> None:
    pytester.makepyfile(f"import pytest\n@pytest.mark.{marker}\ndef test_x(): pass")
    result = pytester.runpytest()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*test_x*"])


def test_every_option_is_in_the_help(pytester: pytest.Pytester) -> None:
    text = pytester.runpytest("--help").stdout.str()
    for option in OPTIONS:
        assert not option.flag or option.flag_name in text
        assert not option.ini or option.ini_name in text
