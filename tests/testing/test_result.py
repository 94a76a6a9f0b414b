"""Results as values, and the message made of them."""

from __future__ import annotations

import pytest

from qtune.testing.limits import shortest
from qtune.testing.record import conclude, conclude_all, drain
from qtune.testing.result import AssertionResult, LayerResult, rerun_command


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
