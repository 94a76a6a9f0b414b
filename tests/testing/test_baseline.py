"""``Baseline``: what is equal, within its tolerance, changed, stale, missing or lost."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from qtune.errors import ArgumentError, BaselineError
from qtune.testing.baseline import Baseline, update_fits
from qtune.testing.baseline_file import BaselineFile, Entry, write
from qtune.testing.baseline_identity import SCHEMA

from .baseline_steps import KEY, failure, status, store


def test_a_missing_baseline_fails_by_name_and_says_what_to_do(path: Path) -> None:
    text = failure(lambda: Baseline(path, KEY).check("top1", 0.9))
    assert text.splitlines() == [
        "baseline: top1: got 0.9, limit a baseline",
        "model: test_net",
        f"no baseline for {KEY}::top1 in __qtune__/test_net.json",
        "To store what was measured, and then commit the file: Baseline(..., update='new') and "
        "save()",
    ]
    assert not path.exists()


def test_in_a_test_the_message_has_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_CURRENT_TEST", "t.py::test_a (call)")
    monkeypatch.setenv("QTUNE_RERUN", "t.py::test_a\tpytest --qtune t.py::test_a")
    text = failure(lambda: Baseline(tmp_path / "t.json", "test_a").check("top1", 0.9))
    assert ": pytest --qtune-update=new --qtune t.py::test_a\n" in text


def test_what_was_accepted_is_written_by_save_only(path: Path) -> None:
    baseline = Baseline(path, KEY, update="new")
    result = baseline.check("sqnr_db", 31.25, max_drop=0.5, identity={"march": "nash-e"})
    assert (result.got, result.limit, result.baseline) == ("31.25", "none (created)", "")
    assert baseline.comparisons[0].to_dict() == {
        "key": KEY,
        "name": "sqnr_db",
        "status": "created",
        "value": 31.25,
        "baseline": None,
        "limit": "a baseline",
        "note": "",
    }
    assert not path.exists()
    assert baseline.save()
    entry = BaselineFile.read(path).get(KEY, "sqnr_db")
    assert entry is not None
    assert (entry.value, entry.tolerance, entry.direction) == (31.25, {"max_drop": 0.5}, "higher")
    assert entry.identity == {"march": "nash-e"}
    assert entry.environment["torch"] == torch.__version__


@pytest.mark.parametrize(
    ("name", "value", "arguments", "expected"),
    [
        ("anything", 10.0, {}, "equal"),
        ("anything", 10, {}, "equal"),
        ("anything", 10.0 + 2e-15, {}, "changed"),
        ("anything", 9.5, {"atol": 0.5}, "within"),
        ("anything", 10.5, {"atol": 0.5}, "within"),
        ("anything", 10.51, {"atol": 0.5}, "changed"),
        ("anything", 9.0, {"rtol": 0.1}, "within"),
        ("anything", 8.99, {"rtol": 0.1}, "changed"),
        ("anything", 8.5, {"rtol": 0.1, "atol": 0.5}, "within"),
        ("anything", 9.5, {"max_drop": 0.5}, "within"),
        ("anything", 9.49, {"max_drop": 0.5}, "changed"),
        ("anything", 99.0, {"max_drop": 0.5}, "within"),
        ("anything", 10.5, {"max_rise": 0.5}, "within"),
        ("anything", 10.51, {"max_rise": 0.5}, "changed"),
        ("anything", -99.0, {"max_rise": 0.5}, "within"),
        ("anything", 9.0, {"max_drop": 1, "max_rise": 0}, "within"),
        ("anything", 10.1, {"max_drop": 1, "max_rise": 0}, "changed"),
        ("anything", 9.9, {"higher_is_better": True}, "changed"),
        ("anything", 10.1, {"higher_is_better": True}, "within"),
        ("anything", 9.9, {"higher_is_better": False}, "within"),
        ("anything", 9.0, {"higher_is_better": True, "rtol": 0.1}, "within"),
        ("sqnr_db", 10.1, {}, "within"),
        ("sqnr_db", 9.9, {}, "changed"),
        ("min_cosine", 9.9, {}, "changed"),
        ("atol", 9.9, {}, "within"),
        ("max_l1", 10.1, {}, "changed"),
        ("atol", 9.9, {"higher_is_better": True}, "changed"),
        ("anything", math.nan, {"atol": 1e9}, "changed"),
        ("anything", math.nan, {"equal_nan": True}, "changed"),
        ("anything", math.inf, {"max_drop": 1}, "within"),
        ("anything", -math.inf, {"max_drop": 1}, "changed"),
        ("anything", 9.8, {"max_drop": 0.2, "max_rise": 0}, "within"),
        ("anything", math.inf, {"rtol": math.inf}, "within"),
        ("anything", np.float32(10), {}, "equal"),
        ("anything", np.int8(10), {}, "equal"),
        ("anything", torch.tensor(10.0), {}, "equal"),
    ],
)
def test_a_number_against_its_baseline_of_10(
    path: Path, name: str, value: Any, arguments: dict[str, Any], expected: str
) -> None:
    write(path, {KEY: {name: Entry("metric", 10.0)}})
    assert status(path, name, value, **arguments) == expected


@pytest.mark.parametrize(
    ("stored", "value", "arguments", "expected"),
    [
        (math.nan, math.nan, {"equal_nan": True}, "equal"),
        (math.nan, math.nan, {}, "changed"),
        (math.nan, 1.0, {"equal_nan": True}, "changed"),
        (math.inf, math.inf, {}, "equal"),
        (math.inf, 300.0, {"max_drop": 1}, "changed"),
        (math.inf, math.inf, {"max_drop": 1}, "equal"),
        (-math.inf, -math.inf, {"rtol": 1}, "equal"),
        (-math.inf, math.inf, {"rtol": 1}, "changed"),
        (0.0, -0.0, {}, "equal"),
        (2**60, 2**60 + 1, {}, "changed"),
        (2**60, 2**60 - 1, {"max_drop": 1}, "within"),
        (2**60, 2**60 - 2, {"max_drop": 1}, "changed"),
        (-128, 127, {"atol": 254}, "changed"),
        (-128, 127, {"atol": 255}, "within"),
    ],
)
def test_numbers_that_floats_make_hard(
    path: Path, stored: float, value: float, arguments: dict[str, Any], expected: str
) -> None:
    write(path, {KEY: {"n": Entry("metric", stored)}})
    assert status(path, "n", value, **arguments) == expected


def test_a_changed_number_fails_with_both_values_and_the_limit(path: Path) -> None:
    store(path, "sqnr_db", 31.25, max_drop=0.5)
    text = failure(lambda: Baseline(path, KEY).check("sqnr_db", 30.5, max_drop=0.5, model="net"))
    assert text.splitlines() == [
        "baseline: sqnr_db: got 30.5, limit >= 30.75",
        "model: net",
        "baseline 31.25, allowed >= 30.75",
        "If the change is meant, accept it, and commit the file: Baseline(..., update='all') and "
        "save()",
    ]


def test_a_better_value_passes_with_a_note(path: Path) -> None:
    store(path, "sqnr_db", 31.25)
    assert "update it to keep that" in Baseline(path, KEY).check("sqnr_db", 32.0).table


@pytest.mark.parametrize(
    ("name", "value", "arguments", "message"),
    [
        ("atol", 1.0, {"max_drop": 1}, "lower is better.*give max_rise"),
        ("sqnr_db", 1.0, {"max_rise": 1}, "higher is better.*give max_drop"),
        ("x", 1.0, {"atol": -1}, "atol must be a number from 0 but got -1"),
        ("x", 1.0, {"rtol": math.nan}, "rtol must be a number from 0 but got nan"),
        ("x", 1.0, {"max_drop": "1"}, "max_drop must be a number from 0 but got '1'"),
        ("x", "1.0", {}, "expected a number, an array or a tensor but got '1.0'"),
        ("x", None, {}, "expected a number"),
        ("x", True, {}, "expected a number"),
        ("x", torch.tensor(True), {}, "expected a real number but got True"),
        ("x", np.array("a"), {}, "but got"),
        ("x", {"a": 1}, {}, "but got"),
        ("x", [1, [2, 3]], {}, "inhomogeneous"),
        ("x", [1j], {}, "real numbers of up to 64 bits"),
        ("x", np.zeros(1025), {}, "1025 elements are too many"),
        ("x", [1.0], {"max_drop": 1}, "max_drop is for a number"),
        ("x", [1.0], {"higher_is_better": True}, "higher_is_better is for a number"),
        ("", 1.0, {}, "a text that is not empty"),
        ("x", 1.0, {"identity": 3}, "identity: expected Stages"),
    ],
)
def test_wrong_arguments_are_one_clear_error(
    path: Path, name: str, value: Any, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ArgumentError, match=message):
        Baseline(path, KEY, update="all").check(name, value, **arguments)


def test_a_name_is_checked_once(path: Path) -> None:
    baseline = Baseline(path, KEY, update="all")
    baseline.check("x", 1.0)
    with pytest.raises(ArgumentError, match=r"checked the baseline 'x' twice; give each value"):
        baseline.check("x", 1.0)


ARRAYS = {
    "float32": np.array([[0.1, np.nan], [np.inf, -0.0]], np.float32),
    "float64": np.array([1 / 3, 5e-324, -1e300]),
    "float16": torch.tensor([0.1, 65504.0], dtype=torch.float16),
    "bfloat16": torch.tensor([[0.1, 3e38]], dtype=torch.bfloat16),
    "int8": np.array([-128, 127], np.int8),
    "uint64": np.array([2**64 - 1, 0], np.uint64),
    "bool": np.array([[True], [False]]),
    "empty": np.zeros((0, 3), np.float32),
    "long": np.arange(1000, dtype=np.int16).reshape(10, 100),
    "list": [1, 2, 3],
    "one": torch.tensor([2.5]),
}


@pytest.mark.parametrize("kind", ARRAYS)
def test_every_array_is_equal_to_itself(path: Path, kind: str) -> None:
    store(path, "a", ARRAYS[kind], equal_nan=True)
    assert status(path, "a", ARRAYS[kind], equal_nan=True) == "equal"


def test_a_nan_in_an_array_fails_unless_asked_for_and_elsewhere_always(path: Path) -> None:
    a, b = np.array([1.0, np.nan, 3.0]), np.array([1.0, 2.0, np.nan])
    store(path, "a", a, equal_nan=True)
    assert status(path, "a", a.copy(), equal_nan=True) == "equal"
    assert status(path, "a", a.copy()) == "changed"
    text = failure(lambda: Baseline(path, KEY).check("a", b, equal_nan=True, atol=1e9))
    assert "2 of 3 elements differ, at [1]" in text
    assert "  at [1]: 2.0, baseline nan\n  at [2]: nan, baseline 3.0\n" in text


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.zeros((3, 1), np.float32), "got shape (3, 1), limit shape (3,)"),
        (np.zeros(3), "got float64, limit float32"),
        (np.zeros((1, 3)), "got float64 (1, 3), limit float32 (3,)"),
        (0.0, "got metric, limit array"),
    ],
)
def test_another_shape_or_dtype_is_reported_as_such(path: Path, value: Any, message: str) -> None:
    store(path, "a", np.zeros(3, np.float32))
    assert message in failure(lambda: Baseline(path, KEY).check("a", value))


def test_elements_are_compared_within_a_tolerance_and_without_wrap_around(path: Path) -> None:
    store(path, "codes", np.array([-128, 0], np.int8))
    assert status(path, "codes", np.array([-127, 1], np.int8), atol=1) == "within"
    text = failure(
        lambda: Baseline(path, KEY).check("codes", np.array([127, 0], np.int8), atol=254)
    )
    assert "  at [0]: 127, baseline -128\n" in text


def test_a_damaged_array_in_the_file_is_an_error(path: Path) -> None:
    value = {"dtype": "int8", "shape": [2], "values": ["1 300"]}
    write(path, {KEY: {"a": Entry("array", value)}})
    with pytest.raises(BaselineError, match="the baseline of 'a' is damaged"):
        Baseline(path, KEY).check("a", np.zeros(2, np.int8))


def test_another_identity_is_stale_and_says_from_what_to_what(path: Path) -> None:
    store(path, "top1", 0.9, identity={"march": "nash-e", "data": "a"})
    check = Baseline(path, KEY).check
    text = failure(lambda: check("top1", 0.8, identity={"march": "nash-m", "data": "a"}))
    assert text.splitlines()[:5] == [
        "baseline: top1: got march nash-m, limit march nash-e",
        "model: test_net",
        f"stale baseline for {KEY}::top1 in __qtune__/test_net.json:",
        "  march was nash-e, is now nash-m",
        "  the value was 0.9, is now 0.8",
    ]
    assert status(path, "top1", 0.9, identity={"march": "nash-m", "data": "a"}) == "stale"
    assert status(path, "top1", 0.9) == "stale"
    assert status(path, "top1", 0.9, identity={"march": "nash-e", "data": "a"}) == "equal"


def test_values_of_an_older_schema_are_stale(path: Path) -> None:
    store(path, "x", 1.0)
    path.write_text(path.read_text().replace(f'"schema": {SCHEMA}', f'"schema": {SCHEMA - 1}'))
    text = failure(lambda: Baseline(path, KEY).check("x", 1.0))
    assert f"schema was {SCHEMA - 1}, is now {SCHEMA}" in text
    store(path, "x", 1.0)
    assert status(path, "x", 1.0) == "equal"


def test_another_environment_is_a_note(path: Path) -> None:
    environment = {"torch": "1.0", "threads": "8"}
    write(path, {KEY: {"x": Entry("metric", 1.0, environment=environment)}})
    baseline = Baseline(path, KEY)
    assert baseline.check("x", 1.0).ok
    assert baseline.comparisons[0].note == f"measured elsewhere: torch 1.0 -> {torch.__version__}"


def test_an_update_leaves_an_entry_alone_that_only_another_environment_measured(
    path: Path,
) -> None:
    store(path, "x", math.nan, equal_nan=True)
    path.write_text(path.read_text().replace('"torch": "', '"torch": "0.'))
    before = path.read_bytes()
    baseline = Baseline(path, KEY, update="all")
    baseline.check("x", math.nan, equal_nan=True)
    assert baseline.comparisons[0].status == "equal"
    assert not baseline.save()
    assert path.read_bytes() == before
    baseline = Baseline(path, KEY, update="all")
    baseline.check("x", 1.0)
    assert baseline.save()
    assert f'"torch": "{torch.__version__}"' in path.read_text()


def test_another_tolerance_than_the_stored_one_is_a_note(path: Path) -> None:
    store(path, "x", 1.0, atol=0.5)
    assert (
        "the tolerance was atol 0.5, is now atol 2"
        in Baseline(path, KEY).check("x", 1.0, atol=2).table
    )


@pytest.mark.parametrize(
    ("update", "old", "value", "found", "written"),
    [
        ("new", None, 2.0, "created", 2.0),
        ("new", 1.0, 1.0, "equal", 1.0),
        ("new", 1.0, 2.0, "kept", 1.0),
        ("all", None, 2.0, "created", 2.0),
        ("all", 1.0, 2.0, "updated", 2.0),
        ("all", 1.0, 1.0, "equal", 1.0),
        ("TestNet.*", 1.0, 2.0, "updated", 2.0),
        ("TestOther.*", 1.0, 2.0, "kept", 1.0),
        ("TestOther.*", None, 2.0, "missing", None),
    ],
)
def test_an_update_writes_what_it_fits(
    path: Path, update: str, old: float | None, value: float, found: str, written: float | None
) -> None:
    if old is not None:
        store(path, "x", old)
    baseline = Baseline(path, KEY, update=update)
    if found in ("kept", "missing"):
        failure(lambda: baseline.check("x", value))
    else:
        assert baseline.check("x", value).ok
    assert baseline.comparisons[0].status == found
    baseline.save()
    entry = BaselineFile.read(path).get(KEY, "x")
    assert (None if entry is None else entry.value) == written


@pytest.mark.parametrize(
    ("glob", "fits"),
    [
        ("*", True),
        (KEY, True),
        (f"{KEY}::top1", True),
        (f"{KEY}::top?", True),
        ("*::top1", True),
        ("*[nash-e]*", True),
        ("*::sqnr_db", False),
        ("*[nash-m]*", False),
        ("TestNet", False),
        ("testnet.*", False),
    ],
)
def test_a_glob_is_one_of_key_and_name_with_brackets_as_they_are(glob: str, fits: bool) -> None:
    assert update_fits(glob, KEY, "top1", exists=True) is fits


def test_an_update_stores_no_nan_that_nobody_expects(path: Path) -> None:
    baseline = Baseline(path, KEY, update="all")
    assert "NaN is no baseline" in failure(lambda: baseline.check("x", math.nan))
    assert not baseline.save()


def test_an_entry_that_nobody_asked_for_is_lost(path: Path) -> None:
    store(path, "x", 1.0)
    store(path, "y", 2.0)
    baseline = Baseline(path, KEY)
    baseline.check("x", 1.0)
    text = failure(baseline.finish)
    assert text.startswith("baseline: y: got not asked for, limit asked for by its test\n")
    assert f"{KEY} ended without asking for y, which __qtune__/test_net.json holds" in text
    assert [item.status for item in baseline.comparisons] == ["equal", "lost"]


def test_an_update_removes_what_nobody_asks_for(path: Path) -> None:
    store(path, "x", 1.0)
    store(path, "y", 2.0)
    baseline = Baseline(path, KEY, update="all")
    baseline.check("x", 1.0)
    baseline.finish()
    baseline.save()
    assert BaselineFile.read(path).names(KEY) == ("x",)


@pytest.mark.parametrize("arguments", [{"key": ""}, {"key": 3}, {"update": ""}, {"update": True}])
def test_a_baseline_needs_a_key_and_a_legal_update(path: Path, arguments: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match="Baseline: (key|update) must be"):
        Baseline(path, **{"key": KEY, **arguments})


def test_a_check_behind_the_end_is_refused(path: Path) -> None:
    baseline = Baseline(path, KEY, update="all")
    baseline.finish()
    with pytest.raises(ArgumentError, match="'x' behind its end; check it in the test's body"):
        baseline.check("x", 1.0)
