"""Mean and worst over several cases."""

from __future__ import annotations

import math
from typing import Any

import pytest

from qtune.analysis.sensitivity import COLUMNS, HEAD
from qtune.analysis.summary import summarize
from qtune.profiler.sensitivity_table import SensitivityTable


def table(case: str, *rows: tuple[str, list[Any]], metric: str = "ATOL") -> SensitivityTable:
    columns = [*HEAD, *(f"{name}_{metric}" for name in COLUMNS)]
    heads = [[name, "Type", "output", "qint8", f"{case}(1%)"] for name, _ in rows]
    cells = [[*head, *values] for head, (_, values) in zip(heads, rows, strict=True)]
    return SensitivityTable(columns, cells, metric, metric == "COSINE", "", case)


A1, A2 = [1.0, 0.0, 1.0, 0.5, 0.5, 0.1], [3.0, 0.0, 3.0, 0.5, 2.5, 0.3]
B1, B2 = [2.0, 0.0, 2.0, 0.5, 1.5, 0.1], [2.0, 0.0, 2.0, 1.0, 1.0, None]


def test_mean_and_worst_per_stub_sorted_by_gain() -> None:
    tables = [table("3", ("a", A1), ("b", B1)), table("7", ("b", B2), ("a", A2))]
    mean = summarize(tables, "mean")
    assert mean.case == "mean"
    assert mean.column("op_name") == ["a", "b"]
    assert mean.rows[0][5:] == [2.0, 0.0, 2.0, 0.5, 1.5, pytest.approx(0.2)]
    assert mean.rows[1][5:] == [2.0, 0.0, 2.0, 0.75, 1.25, 0.1]  # n/a is left out
    worst = summarize(tables, "worst")
    assert worst.rows[0][5:] == A2
    assert worst.rows[1][5:] == [2.0, 0.0, 2.0, 1.0, 1.5, 0.1]


def test_the_worst_similarity_is_the_smallest_and_the_worst_gain_the_largest() -> None:
    one = [0.9, 1.0, 0.9, 0.99, 0.09, 1.0]
    two = [0.8, 1.0, 0.8, 0.98, 0.18, 1.0]
    tables = [table(c, ("a", row), metric="COSINE") for c, row in (("0", one), ("1", two))]
    assert summarize(tables, "worst").rows[0][5:] == two


def test_nan_stays_nan_and_comes_first() -> None:
    bad = [math.nan] * 6
    found = summarize([table("0", ("a", A1), ("b", bad)), table("1", ("a", A2), ("b", B1))], "mean")
    assert found.column("op_name") == ["b", "a"]
    assert math.isnan(found.rows[0][5])


def test_a_stub_that_only_other_cases_have_counts_with_those() -> None:
    """Cases of another branch of the model."""
    found = summarize([table("0", ("a", A1)), table("1", ("b", B1), ("a", A2))], "mean")
    assert sorted(found.column("op_name")) == ["a", "b"]
    row = dict(zip(found.column("op_name"), found.rows, strict=True))["b"]
    assert row[5:] == B1
