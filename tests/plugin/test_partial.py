"""What makes a run partial: tests by name, flags that choose some, tests that were left out."""

from __future__ import annotations

import pytest

from pytest_qtune import partial


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        (("-k", "net"), "partial run: -k"),
        (("-m", "slow"), "partial run: -m"),
        (("--lf",), "partial run: --lf"),
        (("--sw",), "partial run: --sw"),
        (("--deselect", "t.py::t"), "partial run: --deselect"),
        (("t.py::t",), "partial run: single tests were named"),
        (("--ff",), ""),
        (("t.py",), ""),
    ],
)
def test_a_flag_that_chooses_tests_is_named(
    pytester: pytest.Pytester, args: tuple[str, ...], reason: str
) -> None:
    pytester.makepyfile(t="def t(): pass")
    assert partial.reason(pytester.parseconfig(*args), 0) == reason


def test_what_another_plugin_leaves_out_is_counted(pytester: pytest.Pytester) -> None:
    assert partial.reason(pytester.parseconfig(), 2) == "partial run: 2 deselected"
