"""Reports and tables as values: sorting, views, and safe loading."""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd
import pytest
import torch

from qtune.errors import AnalysisError, ArgumentError
from qtune.profiler import BadCaseReport, Metric, OpInfo, SensitivityTable

TABLE = SensitivityTable(
    ["op_name", "qint8_ATOL"],
    [["a", 1.0], ["b", None], ["c", 3.0], ["d", math.nan], ["e", 1.0]],
    "ATOL",
    False,
    "",
    "0",
)
REPORT = BadCaseReport(
    {"": {"ATOL": [(4, 0.5), (1, 0.5)], "SQNR": [(2, 10.0)]}},
    {"": {"ATOL": [0.1, 0.5, 0.2, None, 0.5], "SQNR": [30.0, 20.0, 10.0, None, 20.0]}},
    {"ATOL": False, "SQNR": True},
)


def test_sorting_puts_nan_first_nothing_last_and_keeps_ties() -> None:
    assert TABLE.sort_by_column("qint8_ATOL").column("op_name") == ["d", "c", "a", "e", "b"]
    upwards = TABLE.sort_by_column("qint8_ATOL", descending=False)
    assert upwards.column("op_name") == ["d", "a", "e", "c", "b"]
    with pytest.raises(ArgumentError, match="no column 'x'; this table has: op_name, qint8_ATOL"):
        TABLE.sort_by_column("x")


def test_a_table_writes_txt_csv_and_pt(tmp_path: Path) -> None:
    table = TABLE.with_column("more", [1, 2, 3, 4, 5])
    table.save(tmp_path / "output_1.5_case_0")
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        f"output_1.5_case_0{kind}" for kind in (".csv", ".pt", ".txt")
    ]
    loaded = torch.load(tmp_path / "output_1.5_case_0.pt")
    assert loaded.columns == table.columns
    assert loaded.column("more") == [1, 2, 3, 4, 5]
    frame = pd.read_csv(tmp_path / "output_1.5_case_0.csv")
    assert frame["op_name"].tolist() == ["a", "b", "c", "d", "e"]
    assert math.isnan(frame["qint8_ATOL"][1])
    assert table.to_dict()["metric"] == "ATOL"
    assert table.records()[0] == {"op_name": "a", "qint8_ATOL": 1.0, "more": 1}


def test_a_table_comes_back_as_it_was(tmp_path: Path) -> None:
    table = SensitivityTable(
        ["op_name", "fake_stub_type", "qint8_L1"],
        [["a", "output", 0.1], ["b", "weight", None], ["c", "input-0", math.inf]],
        "L1",
        False,
        "aux-0",
        "worst",
    )
    table.save(tmp_path / "t.pt")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["t.csv", "t.pt", "t.txt"]
    for path in (tmp_path / "t.pt", tmp_path / "t", str(tmp_path / "t.csv")):
        assert SensitivityTable.load(path) == table
    assert torch.load(tmp_path / "t.pt") == table
    assert SensitivityTable(**table.to_dict()) == table
    assert (tmp_path / "t.txt").read_text() == f"{table}\n"


def test_what_is_no_table_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="use_sensitivity_v2=True"):
        SensitivityTable.load(tmp_path / "none.pt")
    torch.save([["a", "output"]], tmp_path / "old.pt")
    with pytest.raises(ArgumentError, match="holds a list, not a sensitivity table"):
        SensitivityTable.load(tmp_path / "old.pt")


def test_texts_sort_too_and_nothing_stays_last() -> None:
    names = SensitivityTable(["n"], [["b"], [None], ["c"], ["a"]], "L1", False, "", "0")
    assert names.sort_by_column("n", descending=False).column("n") == ["a", "b", "c", None]
    mixed = SensitivityTable(["n"], [["b"], [1.0]], "L1", False, "", "0")
    with pytest.raises(ArgumentError, match="holds numbers and texts"):
        mixed.sort_by_column("n")


def test_infinite_values_have_their_place() -> None:
    rows = [[1.0], [math.inf], [None], [-math.inf], [math.nan]]
    table = SensitivityTable(["v"], rows, "L1", False, "", "0").sort_by_column("v")
    assert str(table.column("v")) == "[nan, inf, 1.0, -inf, None]"


def test_the_worst_case_follows_the_metric_and_ties_the_order() -> None:
    assert REPORT.worst(Metric.ATOL) == 1  # 0.5 twice: the earlier one
    assert REPORT.worst(Metric.SQNR) == 2
    assert REPORT.indices == [1, 2, 4]
    assert REPORT.cases_of("", Metric.ATOL) == [4, 1]
    with pytest.raises(AnalysisError, match=r"no output 'x' in the report; it has \[''\]"):
        REPORT.worst(Metric.ATOL, "x")


def test_statistics_leave_out_what_is_not_available() -> None:
    atol, sqnr = REPORT.statistics()
    assert (atol["cases"], atol["mean"], atol["worst"]) == (4, 0.325, 0.5)
    assert (sqnr["worst"], sqnr["mean of topk"]) == (10.0, 10.0)


def test_results_load_with_torchs_safe_default(tmp_path: Path) -> None:
    info = OpInfo("conv", "Conv2d", [torch.ones(2), 3], [torch.zeros(2)], 0.5, "qint8")
    for index, value in enumerate((REPORT, info, TABLE)):
        torch.save(value, tmp_path / f"{index}.pt")
        loaded = torch.load(tmp_path / f"{index}.pt", weights_only=True)
        assert type(loaded) is type(value)
    assert torch.load(tmp_path / "0.pt") == REPORT
    assert torch.equal(torch.load(tmp_path / "1.pt").input[0], torch.ones(2))
