"""Pictures: well-formed, escaped, the same for the same data, robust against odd numbers."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET
from collections.abc import Callable

import pytest

from qtune.report.drawing import axis_of, count_axis, shortened
from qtune.report.svg import RED, bars, curve, falloff, histogram, holders, strip

ODD = [1.0, None, math.nan, math.inf, -math.inf, 0.0]


def texts(svg: str) -> list[str]:
    root = ET.fromstring(svg)
    return [element.text or "" for element in root.iter() if element.tag.endswith("text")]


PICTURES = [
    lambda: curve({"ATOL": ODD}, list("abcdef"), title="t", y_label="y", limit=0.5, log=True),
    lambda: curve({"a": [1.0], "b": [2.0]}, ["only"]),
    lambda: curve({}, []),
    lambda: bars(dict(zip("abcdef", ODD, strict=True)), x_label="x", limit=0.5),
    lambda: bars({}),
    lambda: histogram([math.nan, 1.0, 2.0]),
    lambda: histogram([]),
    lambda: histogram([1.0, 1.0], marks={"50 %": 1.0, "99 %": 1.0}),
    lambda: histogram([1e308, -1e308]),
    lambda: falloff([math.inf, math.nan, 1.0, 1e-300, 0.0, -1.0, None], list("abcdefg")),
    lambda: falloff([], []),
    lambda: curve({"a": [1e308, -1e308, 1e-320]}, ["x", "y", "z"]),
]


@pytest.mark.parametrize("draw", PICTURES)
def test_pictures_are_well_formed_whatever_the_numbers(draw: Callable[[], str]) -> None:
    svg = draw()
    assert svg.startswith("<svg")
    ET.fromstring(svg)


def test_equal_data_is_an_equal_picture() -> None:
    assert PICTURES[0]() == PICTURES[0]()


def test_labels_are_escaped() -> None:
    name = '<script>alert(1)</script> & "q"'
    svg = curve({name: [1.0, 2.0]}, [name, "b"], title=name, limit=1.0)
    assert "<script" not in svg
    assert name in texts(svg)


def test_dollar_signs_and_underscores_are_no_mathematics() -> None:
    assert "a$b_c$d" in texts(bars({"a$b_c$d": 1.0}))


def test_many_layers_are_labelled_in_part() -> None:
    count = 500
    labels = [f"layer{i}" for i in range(count)]
    shown = [t for t in texts(curve({"a": [0.1] * count}, labels)) if t.startswith("layer")]
    assert 30 <= len(shown) <= 60


def test_bars_beyond_the_limit_are_red() -> None:
    assert RED in bars({"a": 2.0, "b": 0.5}, limit=1.0)
    assert RED in bars({"a": 2.0}, bad={"a"})
    assert RED not in bars({"a": 2.0}, bad=set())


def test_a_far_limit_is_named_instead_of_drawn() -> None:
    svg = bars({"a": 0.01}, x_label="ATOL", limit=5.0)
    assert RED not in svg
    assert "ATOL (limit 5)" in texts(svg)


def test_bad_layers_are_marked_on_the_curve() -> None:
    assert RED in curve({"a": [1.0, 2.0]}, ["x", "y"], bad={"y"})


def test_nan_and_infinities_stand_out_on_a_curve() -> None:
    svg = curve({"ATOL": [1.0, math.nan, math.inf, 2.0]}, ["a", "b", "c", "d"])
    assert "b: nan" in svg
    assert "c: inf" in svg
    assert svg.count(RED) == 2
    assert svg.count("<polyline") == 2  # a gap, no line through what is not there


def test_points_and_bars_say_their_value() -> None:
    assert "<title>conv: 0.12345678</title>" in curve({"a": [0.12345678, 1.0]}, ["conv", "b"])
    assert "<title>conv: 0.12345678</title>" in bars({"conv": 0.12345678})


def test_long_names_are_shortened_in_the_middle_and_whole_on_hovering() -> None:
    name = "backbone.stages.3.blocks.17.attention.relative_position_bias.projection weight"
    svg = bars({name: 1.0})
    assert shortened(name, 44) in texts(svg)
    assert f"<title>{name}</title>" in svg
    assert shortened(name, 44).endswith("projection weight")
    assert len(shortened(name, 44)) == 44


def test_a_curve_of_thousands_stays_small() -> None:
    labels = [f"backbone.layer{i}.conv" for i in range(5000)]
    assert len(curve({"a": [float(i) for i in range(5000)]}, labels)) < 200_000


def test_how_many_hold_a_share_of_the_sum() -> None:
    assert holders([8.0, 1.0, 0.5, 0.5], 0.9) == 2
    assert holders([1.0], 0.99) == 1
    assert holders([], 0.9) == 0
    assert "the first 2 hold 90% of the sum" in texts(falloff([8.0, 1.0, 0.5, 0.5], list("abcd")))


def test_axes_have_round_numbers() -> None:
    # multiples of 0.2 round in float64
    assert axis_of([0.0, 0.97], 0, 100, zero=True).ticks() == pytest.approx([0, 0.2, 0.4, 0.6, 0.8])
    # powers of ten round in float64
    assert axis_of([0.0013, 40.0], 0, 100, log=True).ticks() == pytest.approx(
        [0.001, 0.01, 0.1, 1.0, 10.0]
    )
    axis = axis_of([0.0, 10.0], 0, 100)
    assert (axis.at(5.0), axis.at(-1.0), axis.at(11.0)) == (50, 0, 100)
    assert not axis_of([0.0, 1.0], 0, 100, log=True).log  # zero has no place on it


def test_counts_have_whole_ticks() -> None:
    assert count_axis([0, 1], 0, 100).ticks() == [0, 1]
    assert count_axis([3, 2], 0, 100).ticks() == [0, 1, 2, 3]
    assert count_axis([], 0, 100).ticks() == [0, 1]
    assert count_axis([30], 0, 100).ticks() == [0, 5, 10, 15, 20, 25, 30]
    assert "0.2" not in texts(histogram([3.0, 4.0, 5.0]))


def test_a_curve_names_both_axes() -> None:
    shown = texts(curve({"a": [1.0, 2.0]}, ["x", "y"], x_label="stubs", y_label="score"))
    assert {"stubs", "score"} <= set(shown)


def test_marks_of_a_narrow_axis_tell_values_apart() -> None:
    """A cosine from 0.99998 to 1, as between two stages that agree."""
    marks = axis_of([0.99998, 1.0], 0, 100).marks()
    assert [text for _, text in marks] == ["0.99998", "0.999985", "0.99999", "0.999995", "1"]
    assert axis_of([0.0, 0.97], 0, 100, zero=True).marks()[1][1] == "0.2"


def test_a_limit_far_above_a_curve_is_named_instead_of_drawn() -> None:
    near, far = (curve({"a": [0.1, 0.2, 0.3]}, list("xyz"), limit=limit) for limit in (0.5, 50.0))
    assert "limit 0.5" in texts(near)
    assert "limit 50, far above" in texts(far)
    assert ("stroke-dasharray" in near, "stroke-dasharray" in far) == (True, False)


def test_a_brief_curve_has_fewer_names_and_dots_but_all_bad_layers() -> None:
    labels = [f"layer{i}" for i in range(300)]
    whole, brief = (
        curve({"a": [0.1] * 300}, labels, bad={"layer7"}, brief=brief) for brief in (False, True)
    )
    assert (whole.count("<circle"), brief.count("<circle")) == (151 - 1, 21 - 1)
    assert len(brief) < len(whole) / 2
    assert RED in brief


def test_a_picture_can_be_told_in_words() -> None:
    svg = curve({"a": [1.0]}, ["x"], y_label="ATOL <1>", desc="one & only")
    root = ET.fromstring(svg)
    assert [(child.tag, child.text) for child in root[:2]] == [
        ("title", "ATOL <1>"),
        ("desc", "one & only"),
    ]


def test_a_strip_has_a_box_per_operator_and_a_legend() -> None:
    kinds = {f"op{i}": "qint8" if i % 2 else "float" for i in range(10)}
    svg = strip(kinds, {"qint8": "#111111", "float": "#222222"})
    assert texts(svg) == ["qint8", "float"]
    assert svg.count('fill="#222222"') == 5 + 1
    assert "<title>op3: qint8</title>" in svg


def test_neighbours_of_one_kind_share_a_box_in_a_long_strip() -> None:
    kinds = {f"op{i}": "qint8" if i < 400 else "float" for i in range(500)}
    svg = strip(kinds, {"qint8": "#111111", "float": "#222222"})
    assert svg.count("<rect") == 2 + 2
    assert "<title>op0 to op399, 400 operators: qint8</title>" in svg
    ET.fromstring(strip({}, {}))
