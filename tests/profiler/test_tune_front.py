"""The front as a value: domination, budgets, views."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from qtune.errors import AnalysisError, ArgumentError
from qtune.profiler import Budget, SensitivityTable, TuneFront, TunePoint
from qtune.profiler.tune_front import front_of

A, B, C = ("a", "output"), ("b", "weight"), ("c", "output")


def point(mean: float, share: float, *ports: tuple[str, str]) -> TunePoint:
    return TunePoint(ports, share, 100.0 * share + 10, mean, mean + 1)


ZERO, ONE, TWO = point(9.0, 0.0), point(5.0, 0.25, A), point(4.0, 0.5, A, B)
FRONT = TuneFront(
    (ZERO, ONE, TWO), (ZERO, ONE, TWO), "L1", False, "int16_macs", "nash-e", {"c output": "why"}
)


def test_points_that_a_cheaper_one_equals_or_beats_are_dropped() -> None:
    worse, equal = point(6.0, 0.4, C), point(5.0, 0.3, B)
    free = point(8.0, 0.0, C)  # costs no multiply-adds, but a stub
    found = front_of([TWO, worse, equal, ONE, free, ZERO], "int16_macs", ascending=False)
    assert found == (ZERO, free, ONE, TWO)
    assert front_of([TWO, worse, equal, ONE, ZERO], "stubs", ascending=False) == (ZERO, ONE, TWO)


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.pt").write_text("no zip file")
    torch.save({}, tmp_path / "dict.pt")
    for load in (TuneFront.load, SensitivityTable.load):
        with pytest.raises(AnalysisError, match=r"text\.pt can't be read safely"):
            load(tmp_path / "text.pt")
        with pytest.raises(ArgumentError, match=r"dict\.pt holds a dict"):
            load(tmp_path / "dict.pt")
        with pytest.raises(FileNotFoundError, match=r"none\.pt does not exist"):
            load(tmp_path / "none.pt")


def test_larger_may_be_better_and_nan_is_the_worst() -> None:
    lost = point(math.nan, 0.0)
    assert front_of([ONE, ZERO, TWO], "int16_macs", ascending=True) == (ZERO,)
    assert front_of([TWO, lost], "int16_macs", ascending=True)[-1] is TWO
    assert front_of([ZERO, point(math.nan, 0.5, A)], "stubs", ascending=False) == (ZERO,)


def test_the_best_within_a_budget_and_the_cheapest_that_is_good_enough() -> None:
    assert FRONT.best() is TWO
    assert FRONT.best(0.3) is FRONT.best({"stubs": 1}) is FRONT.best(Budget(latency_us=40)) is ONE
    assert FRONT.best({"stubs": 2, "int16_macs": 0.1}) is ZERO
    assert FRONT.cheapest(5.5) is ONE
    with pytest.raises(ArgumentError, match="the cheapest costs int16_macs 0.0, latency_us 10.0"):
        FRONT.best({"latency_us": 1})
    with pytest.raises(ArgumentError, match=r"no point reaches L1 1\.0; the best one is 4\.0"):
        FRONT.cheapest(1.0)


def test_a_point_without_a_latency_is_within_no_limit_of_it() -> None:
    unknown = TunePoint((A,), 0.1, None, 1.0, 1.0)
    assert not Budget(latency_us=1e9).allows(unknown)
    assert Budget(int16_macs=0.1, stubs=1).allows(unknown)


def test_a_budget_says_what_the_front_is_drawn_over() -> None:
    assert Budget().cost == Budget.of(0.5).cost == "int16_macs"
    assert Budget(stubs=3).cost == "stubs"
    assert Budget(latency_us=3.0, stubs=3).cost == "latency_us"
    for wrong in ({"stubs": True}, {"latency_us": -1}, {"int16_macs": 2}, {"latency_us": math.nan}):
        with pytest.raises(ArgumentError, match="budget: "):
            Budget.of(wrong)


def test_views_say_what_changes_from_point_to_point(tmp_path: Path) -> None:
    frame = FRONT.to_pandas()
    assert frame["raised"].tolist() == ["", "+ a output", "+ b weight"]
    assert frame["mean"].tolist() == [9.0, 5.0, 4.0]
    assert "Not raised:\n  c output: why" in str(FRONT)
    assert FRONT.to_dict()["points"][1]["ports"] == [["a", "output"]]
    FRONT.save(tmp_path / "front")
    assert TuneFront.load(tmp_path / "front.pt") == FRONT
    assert torch.load(tmp_path / "front.pt", weights_only=True) == FRONT
    torch.save([1], tmp_path / "other.pt")
    with pytest.raises(ArgumentError, match="holds a list, not a front"):
        TuneFront.load(tmp_path / "other.pt")
    assert FRONT
    assert not TuneFront((ZERO,), (ZERO,), "L1", False, "stubs")
