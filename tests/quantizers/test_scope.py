"""The error for fake-quantizes without data."""

from __future__ import annotations

from qtune.quantizers.scope import not_calibrated


def test_a_few_names_stand_in_one_line_with_the_advice() -> None:
    text = str(not_calibrated(["a", "b", "a"]))
    assert text.startswith("nothing is calibrated for: a, b. They never saw enough data")
    assert "set_fake_quantize(model, FakeQuantState.CALIBRATION)" in text
    assert "\n" not in text


def test_many_names_are_cut_in_the_first_line_and_listed_below() -> None:
    names = [f"op{i}" for i in range(33)]
    first, *rest = str(not_calibrated(names)).split("\n")
    assert "op0, op1, op2, op3, op4 and 28 more. " in first
    assert "FakeQuantState.CALIBRATION" in first
    assert [line.strip() for line in rest] == names
