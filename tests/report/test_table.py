"""Numbers and text tables as the documents print them."""

from __future__ import annotations

import math

import pytest

from qtune.report.table import format_number, text_table


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""),
        (0.0, "0.0000000"),
        (0.00784044, "0.0078404"),
        (1.5e-9, "1.5000000e-09"),
        (-2.0, "-2.0000000"),
        (math.nan, "nan"),
        (math.inf, "inf"),
        (3, "3"),
        ("007", "007"),
        (True, "True"),
    ],
)
def test_numbers(value: object, text: str) -> None:
    assert format_number(value) == text


def test_boxed_table_from_mappings() -> None:
    table = text_table(
        [{"name": "conv", "value": 0.5}, {"name": "1e3", "value": None}], ["name", "value"]
    )
    assert table.splitlines() == [
        "+--------+-----------+",
        "| name   | value     |",
        "|--------+-----------|",
        "| conv   | 0.5000000 |",
        "| 1e3    |           |",
        "+--------+-----------+",
    ]


def test_plain_table_from_sequences_with_an_index() -> None:
    table = text_table([("a", 1), ("b", 2)], ["n", "v"], style="plain", index=True)
    assert table.splitlines() == ["    n    v", "--  ---  ---", "0   a    1", "1   b    2"]


def test_table_without_rows_has_its_head() -> None:
    assert "| name" in text_table([], ["name"])


def test_numbers_stand_at_the_right_where_a_column_has_nothing_else() -> None:
    rows = [("conv", 0.5, 1, "-1"), ("relu", None, 12, 3)]
    table = text_table(
        rows, ["name", "value", "n", "mixed"], index=True, digits=2, numbers_right=True
    )
    assert table.splitlines()[1:5] == [
        "|    | name   |   value |   n | mixed   |",
        "|----+--------+---------+-----+---------|",
        "|  0 | conv   |    0.50 |   1 | -1      |",
        "|  1 | relu   |         |  12 | 3       |",
    ]
