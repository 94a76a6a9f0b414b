"""Values beside their baselines: at the limit, in the last digit, of odd types and sizes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from qtune.errors import ArgumentError
from qtune.testing.baseline import Baseline
from qtune.testing.baseline_file import BaselineFile, Entry, write
from qtune.testing.baseline_identity import identity_of

from .baseline_steps import KEY, failure, status, store


def test_values_that_six_digits_do_not_tell_apart_are_shown_whole(path: Path) -> None:
    store(path, "x", 0.1)
    text = failure(lambda: Baseline(path, KEY).check("x", 0.1 + 2**-55))
    assert text.startswith("baseline: x: got 0.10000000000000003, limit 0.1\n")


@pytest.mark.parametrize(
    ("stored", "value", "arguments"),
    [
        (51.7, 51.4, {"max_drop": 0.3}),  # in binary 51.7 - 0.3 > 51.4
        (0.1, 0.3, {"max_rise": 0.2}),  # and 0.1 + 0.2 > 0.3
        (1.1, 1.21, {"rtol": 0.1}),
        (62.7, 61.9, {"atol": 0.8}),
    ],
)
def test_a_value_at_its_limit_as_it_is_written_holds(
    path: Path, stored: float, value: float, arguments: dict[str, Any]
) -> None:
    write(path, {KEY: {"x": Entry("metric", stored)}})
    assert status(path, "x", value, **arguments) == "within"
    worse = math.nextafter(value, value + 10 * (value - stored))
    assert status(path, "x", worse, **arguments) == "changed"


def test_a_broken_limit_looks_broken(path: Path) -> None:
    store(path, "top1", 0.913)
    text = failure(lambda: Baseline(path, KEY).check("top1", 0.9079999999, max_drop=0.005))
    assert text.startswith("baseline: top1: got 0.9079999999, limit >= 0.908\n")


@pytest.mark.parametrize(
    ("value", "note"), [(10.1, "better than its baseline"), (9.9, "")], ids=["better", "worse"]
)
def test_only_a_better_value_is_noted_as_one(path: Path, value: float, note: str) -> None:
    write(path, {KEY: {"sqnr_db": Entry("metric", 10.0, {"max_drop": 0.5}, "higher")}})
    baseline = Baseline(path, KEY)
    baseline.check("sqnr_db", value, max_drop=0.5)
    assert baseline.comparisons[0].note.partition(";")[0] == note


def test_a_value_that_six_digits_do_not_tell_from_its_baseline_is_shown_whole(path: Path) -> None:
    store(path, "x", 0.1)
    result = Baseline(path, KEY).check("x", 0.1 + 1e-9, atol=1)
    assert (result.got, result.baseline) == ("0.100000001", "0.1")


def test_a_provenance_as_identity_is_that_of_its_stages() -> None:
    facts = {"content": "c", "march": "nash-e", "torch": "2", "model": "Net", "qconfig": "f" * 64}
    assert identity_of(facts) == {"march": "nash-e", "qconfig": "f" * 16}
    assert identity_of({"release": 3, "torch": "2"}) == {"release": "3"}


@pytest.mark.parametrize(
    ("array", "rows"),
    [
        (torch.arange(6).reshape(2, 3), ["0 1 2", "3 4 5"]),
        (torch.arange(18), [" ".join(map(str, range(16))), "16 17"]),
        (torch.tensor([0.1], dtype=torch.bfloat16), ["0.100097656"]),
        (torch.tensor([0.1]), ["0.1"]),
        (torch.zeros(0, 3), []),
    ],
)
def test_the_file_has_rows_of_up_to_16_short_numbers(
    path: Path, array: torch.Tensor, rows: list[str]
) -> None:
    store(path, "x", array)
    entry = BaselineFile.read(path).get(KEY, "x")
    assert entry is not None
    assert entry.value["values"] == rows


@pytest.mark.parametrize("value", [0.0, 3.0])
def test_an_infinite_rtol_allows_any_number(path: Path, value: float) -> None:
    store(path, "x", 0.0)
    assert status(path, "x", value, rtol=math.inf) == ("within" if value else "equal")


@pytest.mark.parametrize("flag", ["higher_is_better", "equal_nan"])
@pytest.mark.parametrize("value", ["no", 0, 1.0])
def test_a_flag_that_is_no_bool_is_refused(path: Path, flag: str, value: Any) -> None:
    with pytest.raises(ArgumentError, match=f"'x': {flag} must be a bool but got {value!r}"):
        Baseline(path, KEY).check("x", 1.0, **{flag: value})


@pytest.mark.parametrize("arguments", [{}, {"max_drop": 10**400}], ids=["value", "tolerance"])
def test_integers_beyond_a_float_are_refused(path: Path, arguments: dict[str, Any]) -> None:
    value = 1 if arguments else 10**400
    with pytest.raises(ArgumentError, match="baseline of 'x': .*(too large|must be a number)"):
        Baseline(path, KEY).check("x", value, **arguments)


def test_integers_of_the_other_byte_order_are_compared(path: Path) -> None:
    store(path, "x", np.array([1, 258], dtype=">i4"))
    assert status(path, "x", np.array([1, 258], dtype="<i4")) == "equal"
    assert status(path, "x", np.array([1, 513], dtype=">i4")) == "changed"
