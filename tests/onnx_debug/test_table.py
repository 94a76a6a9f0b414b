"""The table of sensitivities as the document prints it."""

from __future__ import annotations

import math

from qtune.onnx_debug.table import rounded, table


def test_the_documented_table() -> None:
    rows = [("Conv_60", 0.77795123, 68.021029), ("Conv_42", 0.8384, 49.4949), ("Conv_9", 1.0, 0.0)]
    assert table(["node", "cosine-similarity", "mse"], rows).splitlines() == [
        "==========node sensitivity==========",
        "node     cosine-similarity  mse",
        "------------------------------------",
        "Conv_60  0.77795            68.02103",
        "Conv_42  0.8384             49.4949",
        "Conv_9   1.0                0.0",
    ]


def test_a_title_that_can_not_be_in_the_middle_has_as_many_signs_on_both_sides() -> None:
    # the document: 50 characters over a line of 51, 88 over 89, 86 over 87
    title, _, line = table(["node", "mse"], [("n" * 46, 0.5)]).splitlines()[:3]
    assert len(line) == 51
    assert title == "=" * 17 + "node sensitivity" + "=" * 17


def test_numbers_have_five_decimals_but_small_ones_stay() -> None:
    assert rounded(0.123456789) == 0.12346
    assert rounded(0.99999) == 0.99999
    assert rounded(3.2149e-07) == 3.21e-07
    assert rounded(-0.0) == 0.0
    assert math.isnan(rounded(math.nan))
    assert rounded(-math.inf) == -math.inf


def test_of_a_long_name_the_end_is_shown() -> None:
    name = "a" * 60 + "_conv_weight_HzCalibration"
    cell = table(["weight"], [(name,)]).splitlines()[-1]
    assert len(cell) == 50
    assert cell.startswith("...aaa")
    assert cell.endswith("_conv_weight_HzCalibration")
