"""Digests of models, data and functions: equal content is equal, any difference is seen."""

from __future__ import annotations

import enum
import functools
import subprocess
import sys
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from qtune.capture.inputs import Inputs
from qtune.testing.content import digest

LOOP: list[object] = []
LOOP.append(LOOP)
FUNCTOOLS = {"cached_property": functools.cached_property}
METHOD = "class f:\n def m(self): return {}"


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class Plain:
    def __init__(self, value: object) -> None:
        self.value = value


def function(text: str, **names: object) -> Callable[..., Any]:
    scope: dict[str, Any] = {"__name__": "user", **names}
    exec(text, scope)
    return scope["f"]  # type: ignore[no-any-return]


def module(text: str) -> types.ModuleType:
    made = types.ModuleType("user_helpers")
    exec(text, made.__dict__)
    return made


def closing_over(value: object) -> Callable[[], object]:
    return lambda: value


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (1, 1.0),
        (1, True),
        ("1", 1),
        (None, "None"),
        (0.0, -0.0),
        ([1, 2], (1, 2)),
        ([1, [2]], [[1], 2]),
        ({"a": 1}, {"a": 2}),
        (torch.zeros(2), torch.zeros(3)),
        (torch.zeros(2), torch.zeros(2, dtype=torch.float64)),
        (torch.zeros(2, 3), torch.zeros(3, 2)),
        (torch.tensor([1.0]), torch.tensor([1.0000001])),
        (torch.zeros(2), np.zeros(2, dtype=np.float32)),
        (np.arange(2000), np.arange(2000)[::-1]),
        (Color.RED, Color.BLUE),
        (torch.int8, torch.int16),
        (Inputs(torch.zeros(1)), Inputs(x=torch.zeros(1))),
        (Plain(1), Plain(2)),
        (slice(1), slice(2)),
        (closing_over(1), closing_over(2)),
        (functools.partial(max, 1), functools.partial(max, 2)),
        (function("f = lambda x: x + 1"), function("f = lambda x: x + 2")),
        (function("def f(x=1): return x"), function("def f(x=2): return x")),
        (function("f = lambda: c", c=1), function("f = lambda: c", c=2)),
        (
            function("def g(): return 1\ndef f(): return g()"),
            function("def g(): return 2\ndef f(): return g()"),
        ),
        (
            function("class f:\n def m(self): return 1"),
            function("class f:\n def m(self): return 2"),
        ),
        (
            function("def g(x): return 1\ndef f(x): return [g(y) for y in x]"),
            function("def g(x): return 2\ndef f(x): return [g(y) for y in x]"),
        ),
        (
            function("def g(): return 1\nf = lambda: (lambda: g())()"),
            function("def g(): return 2\nf = lambda: (lambda: g())()"),
        ),
        (
            function("def f(): return h.g()", h=module("def g(): return 1")),
            function("def f(): return h.g()", h=module("def g(): return 2")),
        ),
        (
            function("f = lambda: c", c=[1, {"a": (2,)}]),
            function("f = lambda: c", c=[1, {"a": ()}]),
        ),
        (function("f = lambda: c", c=torch.ones(1)), function("f = lambda: c", c=torch.zeros(1))),
        (
            function("f = lambda: c(1)", c=functools.lru_cache(function("f = lambda: 1"))),
            function("f = lambda: c(1)", c=functools.lru_cache(function("f = lambda: 2"))),
        ),
        (function("class f: k = 1"), function("class f: k = 2")),
        (
            function("class f:\n class In:\n  def m(self): return 1"),
            function("class f:\n class In:\n  def m(self): return 2"),
        ),
        (
            function("class f:\n @cached_property\n def m(self): return 1", **FUNCTOOLS),
            function("class f:\n @cached_property\n def m(self): return 2", **FUNCTOOLS),
        ),
        (
            function("class A:\n __slots__ = 'k'\nf = A()\nf.k = 1"),
            function("class A:\n __slots__ = 'k'\nf = A()\nf.k = 2"),
        ),
    ],
)
def test_differences_are_seen(a: object, b: object) -> None:
    assert digest(a) != digest(b)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({1, 2, 3}, {3, 2, 1}),
        (torch.arange(6.0).reshape(2, 3), torch.arange(6.0).reshape(3, 2).t().t().reshape(2, 3)),
        (torch.arange(6.0)[::2], torch.tensor([0.0, 2.0, 4.0])),
        (Plain([1]), Plain([1])),
        (object(), object()),
        (function("f = lambda x: x + 1"), function("\n\n\nf = lambda x: x + 1")),
        (function("f = lambda: c", c=LOOP), function("f = lambda: c", c=LOOP)),
        (function("f = lambda: c", c=object()), function("f = lambda: c", c=object())),
        (function("f = lambda: c", c={len: 1}), function("f = lambda: c", c={max: 1})),
    ],
)
def test_equal_content_is_equal(a: object, b: object) -> None:
    assert digest(a) == digest(b)


@pytest.mark.parametrize(
    "value",
    [
        torch.zeros(0),
        torch.tensor(1.0),
        torch.ones(3, dtype=torch.bfloat16),
        torch.ones(3, dtype=torch.bool),
        torch.ones(2, dtype=torch.complex64).conj(),
    ],
)
def test_any_tensor_has_a_digest(value: torch.Tensor) -> None:
    assert digest(value) == digest(value.clone())


def test_cycles_end() -> None:
    loop: list[object] = []
    loop.append(loop)
    assert digest(loop) == digest(loop)


def _hooked(hook: Callable[..., None]) -> nn.Module:
    module = nn.ReLU()
    module.register_forward_hook(hook)
    return module


def _hook(*args: object) -> None:
    """Does nothing."""


def _other_hook(*args: object) -> None:
    """Does something else."""
    print(args)


def test_hooks_of_a_module_in_a_list_count_whatever_their_numbers_in_the_process() -> None:
    first = digest([_hooked(_hook)])
    assert digest([_hooked(_hook)]) == first  # torch gave it the next number
    assert digest([_hooked(_other_hook)]) != first
    assert digest([nn.ReLU()]) != first


def test_digest_is_the_same_in_another_process_without_pytest() -> None:
    program = (
        "import sys\n"
        "sys.modules['pytest'] = None\n"  # an import of pytest would fail
        "import qtune.testing\n"
        "[getattr(qtune.testing, name) for name in qtune.testing.__all__]\n"
        "from qtune.testing.content import digest\n"
        "import torch\n"
        "print(digest({'s': {'a', 'b', 'c'}, 't': torch.ones(3)}))"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    own = digest({"s": {"a", "b", "c"}, "t": torch.ones(3)})
    assert done.stdout.strip() == own


FIXED = {
    "f07ab8323b20303576177bb2cf3b28e78b62601ad3eb5ec595cbc7a4c01bebf7": 3,
    "86dc7af21bbba124f53cdb84a9782f3f7cb10d0baeecf1a34b2db098f1692a16": "text",
    "a66a5ae44fcf0f3f9c7a8c8f9b2e6cd3e3d5a976f389c0219d28e8f5c9dfd857": [1, 2.5, None, True],
    "a070e7bb6f02de4ba7a6b527240b67a988aa265963998b3928bcccef284d7773": {"b": (1,), "a": b"\0"},
    "799d8d893ea5963fadf49b768a1572767b0dcd820965602a9742686291481150": torch.arange(
        6, dtype=torch.float32
    ).reshape(2, 3),
    "fca4c33c79134cead3899cab791480b3a56ce4abf6244cadaf55979b3b55722b": torch.tensor(
        [-1, 2], dtype=torch.int8
    ),
    "e28b96fe8fac3dee8a2b6b9a12a9f7d763e4bb9255ba751045c69c653246bc23": np.array([1.5, -0.0]),
}


@pytest.mark.parametrize("expected", FIXED)
def test_digests_stay_what_they_are_because_baselines_hold_them(expected: str) -> None:
    assert digest(FIXED[expected]) == expected, (
        "every stored baseline and artefact of every user is stale with another digest. If that is "
        "meant: raise SCHEMA in qtune/testing/baseline_file.py, so that baselines say why, put it "
        "into CHANGELOG.md, then change these values"
    )
