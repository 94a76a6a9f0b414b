"""Values that cross a process boundary (case A35)."""

from __future__ import annotations

import datetime
import enum
import math
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from pytest_qtune.plain import json_ready, to_plain


class Color(enum.Enum):
    RED = 1


@dataclass
class Point:
    x: np.float32
    y: Path


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.float32(0.5), 0.5),
        (np.float64(0.25), 0.25),
        (np.int64(3), 3),
        (np.bool_(True), True),
        (np.array([2.0]), 2.0),
        (torch.tensor(1.5), 1.5),
        (torch.tensor([7]), 7),
        (Color.RED, 1),
        (Path("a/b"), "a/b"),
        ({3, 1}, [1, 3]),
        (("a", None, True), ["a", None, True]),
        ({"k": Point(np.float32(1), Path("p"))}, {"k": {"x": 1.0, "y": "p"}}),
    ],
)
def test_plain_values(value: object, expected: object) -> None:
    plain = to_plain(value)
    assert plain == expected
    assert type(plain) is type(expected)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.datetime64("2026-01-02T03:04", "ns"), "2026-01-02T03:04:00.000000000"),
        (datetime.datetime(2026, 1, 2, 3, 4), "2026-01-02T03:04:00"),
        ({Color.RED: 1, 2: {None: 3}}, {"1": 1, "2": {"None": 3}}),
        (2**1000, 2**1000),
        ("\ud800", "\\ud800"),
    ],
)
def test_dates_keys_large_integers_and_surrogates(value: object, expected: object) -> None:
    assert to_plain(value) == expected


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({1: "a", "1": "b"}, r"result has two keys that are both '1' as text"),
        ([{"x": 10**400}], r"result\[0\]\['x'\] is an integer of 1329 bits"),
        (np.timedelta64(1, "s"), "result is a numpy.timedelta64"),
        (np.zeros(0), "result is a numpy.ndarray"),
        (torch.zeros(1, device="meta"), "result is a torch.Tensor"),
        (1j, "result is a builtins.complex"),
        (b"x", "result is a builtins.bytes"),
        (dict, "result is a builtins.type"),
    ],
)
def test_what_no_file_holds_is_refused(value: object, text: str) -> None:
    with pytest.raises(TypeError, match=text):
        to_plain(value, "result")


def test_what_holds_itself_is_refused() -> None:
    loop: list[object] = []
    loop.append(loop)
    with pytest.raises(TypeError, match=r"^qtune: result is nested too deep, or holds itself"):
        to_plain(loop, "result")


def test_nan_stays_a_float_and_becomes_a_string_for_json() -> None:
    assert math.isnan(to_plain(np.float32("nan")))  # type: ignore[arg-type]
    assert json_ready([math.nan, -math.inf, 1.0]) == ["NaN", "-Infinity", 1.0]


def test_what_cannot_be_mapped_is_named() -> None:
    with pytest.raises(TypeError, match=r"result\['w'\]\[0\] is a torch.Tensor"):
        to_plain({"w": [torch.zeros(3)]}, "result")


def test_integers_reach_as_far_as_float64() -> None:
    largest = int(sys.float_info.max)
    assert to_plain([largest, -largest]) == [largest, -largest]
    with pytest.raises(TypeError, match="value is an integer of 1024 bits; pass a float"):
        to_plain(2**1024 - 1)


def test_subclasses_of_plain_types_become_them_exactly() -> None:
    class Text(str):
        pass

    class Count(int):
        pass

    found = to_plain([Text("a\udc80"), Count(2**60 + 1), {(1, Text("b")): Count(1)}])
    assert found == ["a\\udc80", 2**60 + 1, {"(1, 'b')": 1}]
    assert isinstance(found, list)
    assert [type(item) for item in found[:2]] == [str, int]
