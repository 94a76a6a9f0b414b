"""The language of gates: what is read, what is refused and how."""

from __future__ import annotations

import math

import pytest

from pytest_qtune.gate_expression import ABSOLUTE, BASELINE, OPERATORS, parse, parse_all


@pytest.mark.parametrize(
    ("text", "models", "metric", "op", "number", "limit", "relation"),
    [
        ("min_sqnr_db>=25", None, "min_sqnr_db", ">=", 25.0, ">= 25", ABSOLUTE),
        ("top1_drop_pp <= 0.5", None, "top1_drop_pp", "<=", 0.5, "<= 0.5", ABSOLUTE),
        ("cpu_ops==0", None, "cpu_ops", "==", 0.0, "== 0", ABSOLUTE),
        ("latency_us<1e3", None, "latency_us", "<", 1000.0, "< 1e3", ABSOLUTE),
        ("x > -.5", None, "x", ">", -0.5, "> -.5", ABSOLUTE),
        ("net*: cosine>=0.99", "net*", "cosine", ">=", 0.99, ">= 0.99", ABSOLUTE),
        ("a::b:c >= 1.", "a::b", "c", ">=", 1.0, ">= 1.", ABSOLUTE),
        ("*:x>=+2", "*", "x", ">=", 2.0, ">= +2", ABSOLUTE),
        (
            "sqnr_db>=-0.5 vs  baseline",
            None,
            "sqnr_db",
            ">=",
            -0.5,
            ">= -0.5 vs baseline",
            BASELINE,
        ),
    ],
)
def test_gate_is_read(
    text: str, models: str | None, metric: str, op: str, number: float, limit: str, relation: str
) -> None:
    gate = parse(text, "here")
    assert (gate.models, gate.metric, gate.op, gate.number) == (models, metric, op, number)
    assert (gate.limit, gate.relation) == (limit, relation)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("sqnr_db=>25", "write >= for =>"),
        ("sqnr_db=<25", "write <= for =<"),
        ("cpu_ops=0", "write == for ="),
        ("cpu_ops != 0", "there is no !="),
        ("sqnr_db 25", "it has no operator"),
        ("sqnr_db >= nan", "a finite number is needed"),
        ("sqnr_db >= inf", "a finite number is needed"),
        ("sqnr_db >= 25 baseline", "ends with: vs baseline"),
        ("sqnr_db >=", "expected"),
        (">= 25", "expected"),
        ("", "expected"),
        ("sqnr-db >= 25", "expected"),
        ("sqnr_db >= 25dB", "expected"),
        ("1 <= sqnr_db <= 2", "expected"),
        ("sqnr_db >= 1e999", "too large"),
    ],
)
def test_bad_gate_names_its_source_and_what_is_expected(text: str, hint: str) -> None:
    with pytest.raises(pytest.UsageError) as caught:
        parse(text, "ini key qtune_gates")
    message = str(caught.value)
    assert message.startswith(f"ini key qtune_gates: {text!r}")
    assert hint in message


def test_message_lists_every_operator() -> None:
    with pytest.raises(pytest.UsageError) as caught:
        parse("x", "here")
    assert all(op in str(caught.value) for op in OPERATORS)


def test_the_same_gate_twice_is_refused_and_both_sides_of_a_range_are_not() -> None:
    assert len(parse_all(["x>=1", "x<=2", "net: x>=1", "x>=1 vs baseline"], "here")) == 4
    with pytest.raises(pytest.UsageError, match="here: 'x >= 2': x >= is there twice"):
        parse_all(["x>=1", "x >= 2"], "here")


@pytest.mark.parametrize(
    ("op", "below", "at", "above"),
    [
        (">=", False, True, True),
        ("<=", True, True, False),
        ("==", False, True, False),
        (">", False, False, True),
        ("<", True, False, False),
    ],
)
def test_operators(op: str, below: bool, at: bool, above: bool) -> None:
    gate = parse(f"x {op} 2", "here")
    assert [gate.holds(value) for value in (1.0, 2.0, 3.0)] == [below, at, above]
    assert not gate.holds(math.nan)


@pytest.mark.parametrize(
    ("models", "model", "fits"),
    [
        ("net*: ", "net2", True),
        ("net*: ", "Net", False),
        ("", "anything", True),
        ("n?t:", "net", True),
    ],
)
def test_glob_chooses_models(models: str, model: str, fits: bool) -> None:
    assert parse(f"{models}x>1", "here").is_for(model) is fits
