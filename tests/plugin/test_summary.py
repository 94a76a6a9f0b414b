"""Counts of a run, the order of its checks, columns of text."""

from __future__ import annotations

import math
from typing import Any

import pytest

from pytest_qtune import summary
from pytest_qtune.text_columns import align


def result(ok: bool, value: Any, bound: Any = 2.0, name: str = "x") -> dict[str, Any]:
    measured = {"metrics": {name: value}, "limits": {"x": bound}}
    return {"ok": ok, "check": "consistency", "model": "m", **measured}


def test_rank_puts_failures_first_and_the_farthest_from_the_limit_before_the_nearer() -> None:
    ordered = [
        (summary.FAIL, result(False, math.nan)),
        (summary.FAIL, result(False, 30.0)),
        (summary.FAIL, result(False, 3.0)),
        (summary.FAIL, result(False, 3.0, name="y")),  # nothing to compare
        (summary.CAUGHT, result(False, 900.0)),
        (summary.OK, result(True, 1.9)),
        (summary.OK, result(True, 0.5)),
        (summary.OK, result(True, None)),
    ]
    ranks = [summary.rank(mark, found) for mark, found in ordered]
    assert ranks == sorted(ranks)
    assert len(set(ranks)) == len(ranks)


def test_rank_of_a_limit_of_zero_is_the_value() -> None:
    assert summary.rank(summary.FAIL, result(False, 5.0, 0.0)) == (0, -5.0)


def test_line_names_what_there_is() -> None:
    of_values = {**result(True, 1.0), "check": "close", "model": "values"}  # of no model
    tests = [
        {"nodeid": "a", "outcome": "failed", "results": [result(False, 3.0), result(True, 1.0)]},
        {"nodeid": "b", "outcome": "passed", "results": [result(False, 3.0), of_values]},
        {"nodeid": "c", "outcome": "failed", "results": []},
    ]
    gates = [{"outcome": outcome} for outcome in ("passed", "failed", "skipped")]
    assert summary.line(summary.totals(tests, gates)) == (
        "qtune: 4 checks on 1 model(s), 1 failed, 1 failed as their tests expect, "
        "1 test(s) failed without a check; 3 gate(s), 1 failed, 1 skipped"
    )
    assert summary.line(summary.totals([])) == "qtune: 0 checks on 0 model(s), 0 failed"


ROWS = [("name", "got"), ("a_long_name_of_a_layer", "0.1234567890123456789"), ("b", "1")]


@pytest.mark.parametrize("room", [43, 40, 35])
def test_columns_that_may_be_cut_keep_both_ends(room: int) -> None:
    lines = align(ROWS, ["name"], room)
    assert max(map(len, lines)) == room
    assert lines[1].startswith("a_l")
    assert lines[1].split()[0].endswith("layer")
    assert lines[1].endswith(ROWS[1][1])


def test_numbers_are_never_cut_even_where_there_is_no_room() -> None:
    assert all(row[1] in line for row, line in zip(ROWS, align(ROWS, ["name"], 10), strict=True))


def test_wide_characters_take_two_columns() -> None:
    lines = align([("name", "v"), ("卷积" * 10, "1"), ("x", "2")], ["name"], 24)
    assert lines[2].index("2") == lines[0].index("v") == 23
    assert lines[1] == "卷积卷...卷积卷积卷积  1"
