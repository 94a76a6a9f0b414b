"""Results as values, and the message made of them."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from qtune.testing.limits import shortest, telling
from qtune.testing.record import conclude, conclude_all, drain
from qtune.testing.result import (
    HEADLINE_COLUMNS,
    AssertionResult,
    LayerResult,
    columns,
    rerun_command,
)


def result(ok: bool = False, where: str = "head", layers: int = 0) -> AssertionResult:
    return AssertionResult(
        check="consistency",
        model="net",
        ok=ok,
        where=where,
        got="COSINE 0.91234",
        limit=">= 0.99",
        metrics={"cosine": 0.91234},
        limits={"cosine": 0.99},
        layers=[LayerResult(f"l{i}", i / 10, i < 2, float(i), (1, 4)) for i in range(layers)],
        measured="COSINE",
        advice="Do this.",
        artefact="net.bc",
    )


@pytest.mark.parametrize("length", [1, 20, 60, 300])
def test_headline_keeps_got_and_limit_within_80_columns(length: int) -> None:
    where = "backbone." * (length // 9) + "tail"
    headline = result(where=where).headline
    assert len(headline) <= 80
    assert headline.startswith("consistency: ")
    assert headline.endswith("tail: got COSINE 0.91234, limit >= 0.99")


def test_message_has_the_worst_five_and_the_first_bad_layer() -> None:
    lines = result(layers=9).message().splitlines()
    assert lines[0] == "consistency: head: got COSINE 0.91234, limit >= 0.99"
    assert lines[1] == "model: net"
    assert lines[2] == "worst of 7 bad layers (COSINE):"
    assert [line.split(":")[0].strip() for line in lines[3:8]] == ["l8", "l7", "l6", "l5", "l4"]
    assert lines[8] == "first bad layer in order of execution: l2: 0.2, shape (1, 4)"
    assert "Do this." in lines
    assert "artefact: net.bc" in lines


def named(*badness: float, names: tuple[str, ...] = ()) -> AssertionResult:
    labels = names or [f"l{i}" for i in range(len(badness))]
    layers = [LayerResult(n, b, False, b) for n, b in zip(labels, badness, strict=True)]
    return replace(result(), layers=layers)


def test_nan_is_the_worst_and_ties_keep_the_order_of_execution() -> None:
    values = (1.0, math.nan, 3.0, -math.inf, math.inf, 3.0, math.nan)
    lines = named(*values).message().splitlines()
    assert lines[3:8] == ["  l1: nan", "  l6: nan", "  l4: inf", "  l2: 3", "  l5: 3"]
    assert lines[8] == "first bad layer in order of execution: l0: 1"


def test_hundreds_of_layers_are_five_lines() -> None:
    lines = named(*map(float, range(700))).message().splitlines()
    assert lines[2] == "worst of 700 bad layers (COSINE):"
    assert [line.split(":")[0] for line in lines[3:8]] == [f"  l{i}" for i in range(699, 694, -1)]
    assert len(lines) == 12


@pytest.mark.parametrize("parts", ["layers", "ports", "patterns", "outputs"])
def test_what_runs_in_an_order_has_a_first_one(parts: str) -> None:
    message = replace(named(1.0, 2.0), parts=parts).message()
    assert f"worst of 2 bad {parts} (COSINE):" in message
    assert ("first bad " in message) is (parts != "outputs")
    if parts != "outputs":
        assert f"first bad {parts[:-1]} in order of execution: l0: 1" in message


def test_names_of_wide_characters_keep_to_80_columns() -> None:
    """A terminal shows these in two columns each."""
    wide = result(where="\u5377\u79ef\u5c42." * 40 + "tail")
    assert wide.headline.startswith("consistency: ...")
    assert wide.headline.endswith("tail: got COSINE 0.91234, limit >= 0.99")
    assert 78 <= columns(wide.headline) <= HEADLINE_COLUMNS
    assert columns("cafe\u0301") == 4  # an accent that combines takes none


def test_names_with_control_characters_stay_one_line() -> None:
    odd = named(1.0, names=("a\nb\x1b[31m\udc80",))
    text = replace(odd, where="a\nb", model="m\n").message()
    assert text.splitlines()[0].startswith("consistency: a\\nb: got ")
    assert text.splitlines()[1] == "model: m\\n"
    assert text.splitlines()[3] == "  a\\nb\\x1b[31m\\udc80: 1"
    assert text.encode("utf-8")


def test_a_message_without_layers_has_no_lists() -> None:
    lines = replace(result(), layers=(), table="t", artefact=None).message().splitlines()
    assert lines[:4] == [result().headline, "model: net", "t", "Do this."]


@pytest.mark.parametrize("got", ["x" * 60, "x" * 200])
def test_a_long_finding_takes_the_place_of_the_name(got: str) -> None:
    headline = replace(result(where="some.layer"), got=got).headline
    assert len(headline) <= HEADLINE_COLUMNS
    assert headline.startswith("consistency: got xxx")


def test_layer_line_says_in_words_what_is_no_number() -> None:
    layer = LayerResult("c", None, False, 1.0, (2,), "qint8", found="got qint8, expected qint16")
    assert layer.line() == "c: got qint8, expected qint16, qint8, shape (2,)"


def test_layer_line_names_scale_differing_codes_and_saturation() -> None:
    layer = LayerResult("conv", 3.0, False, 3.0, (2, 8), "qint8", 0.0123456789, 0.25, 0.0)
    assert layer.line() == (
        "conv: 3, qint8, shape (2, 8), scale 0.01234568, 25.00% of the codes differ, "
        "0.00% saturated"
    )


def test_failure_carries_the_result_and_is_recorded_once() -> None:
    drain()
    good, bad = result(ok=True), result()
    with pytest.raises(AssertionError) as caught:
        conclude_all([good, bad])
    assert caught.value.qtune_result is bad
    assert type(caught.value) is AssertionError
    assert drain() == [good, bad]
    assert drain() == []


def test_passing_assertion_returns_a_true_result() -> None:
    assert conclude(result(ok=True))
    drain()


def test_result_as_data_frame() -> None:
    frame = result(layers=3).to_pandas()
    assert list(frame["name"]) == ["l0", "l1", "l2"]


def test_rerun_command_without_the_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QTUNE_RERUN", raising=False)
    monkeypatch.setenv("PYTEST_CURRENT_TEST", "tests/test_a.py::test_b[x y] (call)")
    assert rerun_command() == "pytest 'tests/test_a.py::test_b[x y]'"
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    assert rerun_command() is None


def test_result_prints_as_its_headline_or_its_message() -> None:
    good, bad = result(ok=True), result(layers=3)
    assert str(good) == good.headline
    assert str(bad) == bad.message()
    assert repr(bad) == f"<AssertionResult FAIL {bad.headline}>"


@pytest.mark.parametrize(
    ("bound", "text"), [(0.9999999, "0.9999999"), (1.0, "1"), (1e-6, "1e-06"), (0.1, "0.1")]
)
def test_limits_print_the_shortest_exact_text(bound: float, text: str) -> None:
    assert shortest(bound) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.5, "0.5"), (0.98765432, "0.98765"), (1.0000004, "1.0000004"), (1 + 2**-52, None)],
)
def test_a_value_is_shown_with_the_digits_that_tell_it_from_the_bound(
    value: float, text: str | None
) -> None:
    shown = telling(value, lambda v: v <= 1)
    assert shown == (text or repr(value))
    assert (float(shown) <= 1) is (value <= 1)
