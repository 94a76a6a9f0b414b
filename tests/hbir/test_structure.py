"""Containers as JSON: described, kept, rebuilt, matched."""

from __future__ import annotations

import json
from collections import namedtuple
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from qtune.errors import ArgumentError
from qtune.hbir import structure
from qtune.hbir.structure import describe, last_constants, match, rebuild

Pair = namedtuple("Pair", ["first", "second"])


@dataclass
class Boxes:
    boxes: object
    aux: dict


def is_array(value: object) -> bool:
    return isinstance(value, np.ndarray)


A, B, C = (np.full(2, i) for i in range(3))

VALUES = [
    A,
    (A, [B, None], {"k": C}),
    Pair(A, (B, "text")),
    Boxes(A, {"k": (B, None), 3: C}),
    [1, 2.5, True, A],
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_containers_survive_json(value):
    spec, leaves = describe(value, is_array)
    kept = json.loads(json.dumps(spec))

    again, leaves_again = describe(rebuild(kept, leaves), is_array)

    assert again == kept
    assert all(a is b for a, b in zip(leaves, leaves_again, strict=True))


def test_dataclass_and_namedtuple_come_back_as_their_class():
    """Case A18."""
    spec, leaves = describe([Boxes(A, {}), Pair(B, C)], is_array)

    boxes, pair = rebuild(json.loads(json.dumps(spec)), leaves)

    assert type(boxes) is Boxes
    assert type(pair) is Pair


def test_class_that_is_gone_comes_back_as_dict():
    spec, leaves = describe(Pair(A, B), is_array)
    spec["object"] = "no.such.module:Pair"

    assert rebuild(spec, leaves) == {"first": A, "second": B}


@pytest.mark.parametrize("path", ["subprocess:Popen", "os:system", "builtins:dict", "json:loads"])
def test_only_namedtuples_and_dataclasses_are_ever_called(path):
    spec = {"object": path, "fields": [["args", {"const": "true"}]]}

    assert rebuild(spec, []) == {"args": "true"}


def test_unknown_container_is_refused_by_name():
    with pytest.raises(ArgumentError, match="got set"):
        describe({1, 2}, is_array)


def test_match_takes_leaves_in_the_order_of_the_spec():
    spec, _ = describe({"a": A, "b": B}, is_array)

    assert match(spec, {"b": B, "a": A}, is_array, "inputs") == [A, B]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"a": A}, "expected dict with"),
        ({"a": A, "b": 3}, r"\['b'\]: expected a tensor but got 3"),
        ({"a": A, "b": B, "c": C}, "expected dict with"),
    ],
)
def test_match_names_what_differs(value, message):
    spec, _ = describe({"a": A, "b": B}, is_array)

    with pytest.raises(ArgumentError, match=message):
        match(spec, value, is_array, "inputs")


def test_constant_of_the_export_must_come_again():
    spec, _ = describe({"x": A, "task": "det"}, is_array)

    with pytest.raises(ArgumentError, match="exported with 'det'"):
        match(spec, {"x": A, "task": "seg"}, is_array, "inputs")


def test_a_file_does_not_import_the_module_that_it_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "side_effect.py").write_text("raise RuntimeError('imported')\nclass Out: pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert structure._loaded("side_effect:Out") is None


def test_constants_of_a_dict_and_at_the_end_of_a_call_may_be_left_out():
    call = {"args": ({"x": 1.5, "task": ["seg", "det"], "n": None}, 2.5, "fast"), "kwargs": {}}
    spec, _ = describe(call, lambda value: isinstance(value, float))
    short = {"args": ({"x": 1.5}, 2.5, *last_constants(spec, 2)), "kwargs": {}}
    assert match(spec, short, lambda value: isinstance(value, float), "inputs") == [1.5, 2.5]
    assert last_constants(spec, 1) == ()  # a tensor is missing, too
    wrong = {"args": ({"x": 1.5, "task": ["det", "seg"]}, 2.5, "fast"), "kwargs": {}}
    with pytest.raises(ArgumentError, match="exported with 'seg', got 'det'"):
        match(spec, wrong, lambda value: isinstance(value, float), "inputs")
    fewer = {"args": ({"x": 1.5, "task": ["seg"]}, 2.5, "fast"), "kwargs": {}}
    with pytest.raises(ArgumentError, match="expected list with"):
        match(spec, fewer, lambda value: isinstance(value, float), "inputs")
