"""Nested containers taken apart, named and built again (numerics.md section 5, output names)."""

from __future__ import annotations

import pickle
from collections import OrderedDict, namedtuple
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qtune.capture.structure import flatten, flatten_named, leaf_names, unflatten

Point = namedtuple("Point", "x y")  # noqa: PYI024


@dataclass
class Boxes:
    boxes: Any
    aux: Any = None
    late: Any = field(init=False)


def test_names_of_leaves() -> None:
    """A18"""
    assert flatten_named(1) == [("", 1)]
    assert flatten_named((1, [2, None, 3])) == [("0", 1), ("1-0", 2), ("1-2", 3)]
    assert flatten_named(Boxes(1, {"k": (2, None)})) == [("boxes", 1), ("aux-k-0", 2)]
    assert flatten_named(Point(1, {"a": 2, 3: 4})) == [("x", 1), ("y-a", 2), ("y-3", 4)]
    assert flatten_named(None) == []
    named = flatten_named(torch.max(torch.eye(2), dim=0))
    assert [name for name, _ in named] == ["values", "indices"]


@pytest.mark.parametrize(
    "value",
    [
        1,
        None,
        (),
        [1, (2, 3)],
        {"b": 1, "a": [2]},
        OrderedDict(b=1, a=2),
        Point(1, [2]),
        Boxes(1, None),
        torch.Size([2, 3]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_value_is_built_again_by_its_classes(value: Any) -> None:
    leaves, spec = flatten(value)
    again = unflatten(leaves, spec)
    assert type(again) is type(value)
    assert again == value if not isinstance(value, Boxes) else again.boxes == value.boxes
    assert len(leaf_names(spec)) == len(leaves)


NESTED = st.recursive(
    st.integers() | st.none(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
    ),
    max_leaves=12,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(NESTED)
def test_flatten_and_unflatten_are_opposites(value: Any) -> None:
    leaves, spec = flatten(value)
    assert unflatten(leaves, spec) == value
    assert pickle.loads(pickle.dumps(spec)) == spec
    assert flatten(unflatten([0] * len(leaves), spec))[1] == spec


def test_structures_differ_by_class_keys_and_length() -> None:
    specs = [
        flatten(value)[1]
        for value in (1, None, (1,), [1], {"a": 1}, {"b": 1}, [1, 2], Point(1, 2), (1, None))
    ]
    assert len(set(specs)) == len(specs)
    assert str(flatten({"a": (1, None)})[1]) == "dict(a: tuple(*, None))"
