"""Gates against numbers: which value counts, what fails, what a partial run skips."""

from __future__ import annotations

import math
from typing import Any

import pytest

from pytest_qtune import gate_values
from pytest_qtune.gate_expression import parse


def run(*results: dict[str, Any], outcome: str = "passed") -> list[dict[str, Any]]:
    """Tests ``t.py::t0``, ``t.py::t1``, ... with one result each."""
    return [
        {
            "nodeid": f"t.py::t{i}",
            "outcome": result.pop("outcome", outcome),
            "results": [
                {
                    "model": result.pop("model", "net"),
                    "ok": result.pop("ok", True),
                    "check": "c",
                    "where": "head",
                    "provenance": {},
                    "metrics": result,
                }
            ],
        }
        for i, result in enumerate(results)
    ]


def selected(gate: str, *values: float | None) -> float | None:
    found = gate_values.numbers(run(*({"x": value} for value in values)))
    measured = gate_values.select(parse(gate, "here"), found["net"])
    return None if measured is None else measured.value


@pytest.mark.parametrize(
    ("gate", "value"),
    [
        ("x>=0", 1.0),
        ("x>0", 1.0),
        ("x<=0", 5.0),
        ("x<0", 5.0),
        ("x==4", 1.0),
        ("x==1", 5.0),
        ("min_x<=0", 1.0),
        ("max_x>=0", 5.0),
        ("x==0 vs baseline", 5.0),
    ],
)
def test_prefix_takes_a_side_and_without_one_the_worst_counts(gate: str, value: float) -> None:
    assert selected(gate, 1.0, 3.0, 5.0) == value


def test_a_metric_that_is_called_so_is_taken_as_it_is() -> None:
    found = gate_values.numbers(run({"max_qscale_diff": 0.4}, {"max_qscale_diff": 0.9}))
    measured = gate_values.select(parse("max_qscale_diff<=1", "here"), found["net"])
    assert measured is not None
    assert (measured.value, measured.test) == (0.9, "t.py::t1")
    smallest = gate_values.select(parse("min_max_qscale_diff<=1", "here"), found["net"])
    assert smallest is not None
    assert smallest.value == 0.4


@pytest.mark.parametrize("gate", ["x>=0", "x<=9", "min_x>=0", "max_x<=9", "x==1"])
def test_nan_is_worse_than_any_number(gate: str) -> None:
    value = selected(gate, 1.0, math.nan, 5.0)
    assert value is not None
    assert math.isnan(value)


def test_nothing_to_measure_is_no_value() -> None:
    assert selected("x>=0", None) is None
    assert selected("x>=0", None, 2.0) == 2.0


def test_failed_checks_count_and_expected_failures_do_not() -> None:
    tests = run(
        {"x": 1.0, "ok": False, "outcome": "failed"},
        {"x": 2.0, "outcome": "failed"},
        {"x": -7.0, "ok": False, "outcome": "passed"},  # caught with pytest.raises
        {"x": -8.0, "ok": False, "outcome": "xfailed"},
        {"x": -9.0, "outcome": "xfailed"},
        {"x": 3.0, "outcome": "xpassed"},
    )
    found = gate_values.numbers(tests)["net"]["x"]
    assert [measured.value for measured in found] == [1.0, 2.0, 3.0]


def test_without_a_glob_a_gate_is_for_models_that_have_the_number() -> None:
    found = gate_values.numbers(run({"x": 1.0, "model": "a"}, {"y": 1.0, "model": "b"}))
    assert gate_values.models_of(parse("x>0", "here"), found) == ["a"]
    assert gate_values.models_of(parse("*: x>0", "here"), found) == ["a", "b"]
    assert gate_values.models_of(parse("b*: x>0", "here"), found) == ["b"]


def missing(gate: str, model: str | None, *results: dict[str, Any], partial: str = "") -> Any:
    return gate_values.missing(
        parse(gate, "here"), model, gate_values.numbers(run(*results)), partial
    )


def test_missing_number_fails_and_close_names_are_suggested() -> None:
    entry = missing("sqnr>=25", None, {"sqnr_db": 1.0, "cosine": 1.0})
    assert entry["outcome"] == "failed"
    assert entry["nodeid"] == "qtune-gate::*[sqnr]"
    assert entry["message"] == (
        "*: sqnr: no check measured it; measured: cosine, sqnr_db; did you mean sqnr_db?"
    )


def test_missing_number_suggests_the_spelling_with_prefix() -> None:
    entry = missing("min_sqnrdb>=25", "net", {"sqnr_db": 1.0})
    assert "did you mean min_sqnr_db?" in entry["message"]


def test_no_model_of_that_name_lists_those_there_are() -> None:
    entry = missing("vgg*: x>=25", None, {"x": 1.0})
    assert entry["outcome"] == "failed"
    assert entry["model"] == "vgg*"
    assert "no model is named like 'vgg*', there are: net" in entry["message"]


def test_run_without_any_check_fails_by_name() -> None:
    entry = missing("x>=25", None)
    assert entry["outcome"] == "failed"
    assert "no check of this run measured a model" in entry["message"]


def test_partial_run_skips_what_is_missing_and_says_why() -> None:
    entry = missing("x>=25", None, {"y": 1.0}, partial="partial run: -k")
    assert entry["outcome"] == "skipped"
    assert entry["message"].endswith("measured: y (partial run: -k)")


def test_message_says_where_what_limit_and_what_to_do() -> None:
    found = gate_values.numbers(run({"x": 21.25}))["net"]
    gate = parse("min_x >= 25", "here")
    measured = gate_values.select(gate, found)
    assert measured is not None
    entry = gate_values.judge(gate, "net", measured)
    assert entry["message"] == (
        "net: min_x: got 21.25, limit >= 25 (c of t.py::t0, at head); look at this check's worst "
        "layers, or change the gate on purpose"
    )
    assert (entry["value"], entry["test"], entry["outcome"]) == (21.25, "t.py::t0", "failed")


def test_difference_from_the_baseline_decides() -> None:
    gate = parse("x >= -0.5 vs baseline", "here")
    measured = gate_values.Measured(30.75, "t.py::t", "c", "")
    assert gate_values.judge(gate, "net", measured, 31.25)["outcome"] == "passed"
    entry = gate_values.judge(gate, "net", measured, 31.5)
    assert entry["outcome"] == "failed"
    assert (
        "got 30.75, baseline 31.5, difference -0.75, limit >= -0.5 vs baseline" in entry["message"]
    )


def test_gates_on_one_metric_have_ids_of_their_own() -> None:
    gates = [parse(text, "here") for text in ("x>=1", "x<=2", "y>=1")]
    entries = gate_values.complete([gate_values.entry_of(gate, "net") for gate in gates])
    assert [entry["nodeid"] for entry in entries] == [
        "qtune-gate::net[x <= 2]",
        "qtune-gate::net[x >= 1]",
        "qtune-gate::net[y]",
    ]


def test_ids_that_would_be_the_same_are_numbered() -> None:
    gates = [parse(text, "here") for text in ("x>=1", "net*: x>=1", "x>=2")]
    entries = [gate_values.entry_of(gate, "net") for gate in gates]
    entries += [gate_values.entry_of(gates[0], name) for name in ("a::b", "a:b")]
    assert [entry["nodeid"] for entry in gate_values.complete(entries)] == [
        "qtune-gate::a:b[x >= 1 #2]",
        "qtune-gate::a:b[x >= 1]",
        "qtune-gate::net[x >= 1 #2]",
        "qtune-gate::net[x >= 1]",
        "qtune-gate::net[x >= 2]",
    ]


def test_missing_number_after_a_crash_says_so() -> None:
    entry = gate_values.missing(parse("x>=1", "here"), None, {}, "", crashed=True)
    assert entry["outcome"] == "failed"
    assert entry["message"] == (
        "*: x: no check of this run measured a model; look at the worker that crashed first"
    )


def test_id_of_an_odd_model_name_is_one_line_without_separators() -> None:
    entry = gate_values.entry_of(parse("x>=1", "here"), "a::b\n\x1b")
    assert entry["nodeid"] == "qtune-gate::a:b\\n\\x1b[x]"
    assert entry["model"] == "a::b\n\x1b"


def test_message_about_an_odd_model_name_is_one_line() -> None:
    gate = parse("x>=1", "here")
    measured = gate_values.Measured(0.0, "t.py::t", "c", "")
    (entry,) = gate_values.complete([gate_values.judge(gate, "a\n\x1b", measured)])
    assert entry["message"].startswith("a\\n\\x1b: x: got 0, limit >= 1")
