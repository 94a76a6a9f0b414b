"""Pictures: well-formed, escaped, the same for the same data, robust against odd numbers."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET
from collections.abc import Callable

import pytest

from qtune.report.svg import RED, bars, curve, histogram

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
