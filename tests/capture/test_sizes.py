"""Sizes as numbers: equal to ints everywhere, and every way out is reported."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from torch import fx

from qtune.capture.sizes import Flag, SizeInt, Symbol, is_symbol, plain
from qtune.errors import CaptureError


class Tape:
    """Notes what sizes report."""

    recording = True

    def __init__(self) -> None:
        self.graph = fx.Graph()
        self.told: list[str] = []

    def size_node(self, function: Callable[..., Any], operands: tuple[Any, ...]) -> fx.Node:
        self.told.append("node")
        return self.graph.placeholder("size")

    def guard_comparison(self, function: Callable[..., Any], operands: tuple[Any, Any]) -> None:
        self.told.append("comparison")

    def guard_value(self, size: Symbol, use: str = "") -> None:
        self.told.append("value")

    def refusal(self, text: str) -> CaptureError:
        return CaptureError(text)


def size(value: int, tape: Tape) -> Any:
    return SizeInt(value, tape.graph.placeholder("n"), tape, "n")


BINARY = ["add", "sub", "mul", "floordiv", "mod", "truediv", "pow", "lshift", "rshift"]
BINARY += ["and_", "or_", "xor", "eq", "ne", "lt", "le", "gt", "ge"]


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("value", [1, 4, 7])
def test_operators_give_what_ints_give_and_report(name: str, value: int) -> None:
    function = getattr(operator, name)
    for other in (3, 2):
        tape = Tape()
        n = size(value, tape)
        for result, expected in (
            (function(n, other), function(value, other)),
            (function(other, n), function(other, value)),
            (function(n, size(other, tape)), function(value, other)),
        ):
            assert plain(result) == expected
            assert type(plain(result)) is type(expected)
        stays = name in ("add", "sub", "mul", "truediv", "floordiv", "mod")
        assert set(tape.told) == {
            "node" if stays else "comparison" if name in ("eq", "ne", "lt", "le", "gt", "ge")
            else "value"
        }  # fmt: skip


EXITS: dict[str, Callable[[Any], Any]] = {
    "range": lambda n: list(range(n)),
    "index": lambda n: "abcdefgh"[n],
    "slice": lambda n: "abcdefgh"[:n],
    "repeat": lambda n: [0] * n + n * [1],
    "string": lambda n: f"{n} {n!r} {n:03d}" + str(n) + "%d" % n,  # noqa: UP031
    "int": int,
    "float": float,
    "complex": complex,
    "hash": hash,
    "round": lambda n: round(n, -1),
    "sqrt": math.sqrt,
    "gcd": lambda n: math.gcd(n, 6),
    "log2": math.log2,
    "comb": lambda n: math.comb(n, 2),
    "isqrt": math.isqrt,
    "float product": lambda n: float(0.5 * n + n * 1.5 - n / 2.0),
    "complex product": lambda n: n * 2j,
    "numpy": lambda n: np.zeros(n).shape + np.arange(n).shape,
    "numpy sqrt": lambda n: float(np.sqrt(n)),
    "bytes": bytes,
    "hex": hex,
    "bit_length": lambda n: n.bit_length(),
    "real": lambda n: n.real,
    "abs": abs,
    "invert": operator.invert,
    "power": lambda n: (pow(n, 2, 5), n**-0.5, 2**n),
    "json": lambda n: operator.index(n),
}


@pytest.mark.parametrize("name", EXITS)
def test_every_way_out_is_guarded(name: str) -> None:
    tape = Tape()
    result = EXITS[name](size(6, tape))
    assert result == EXITS[name](6)
    assert "value" in tape.told


def test_sizes_pass_for_ints() -> None:
    n = size(4, Tape())
    assert isinstance(n, int)
    assert isinstance(n + 1, int)
    assert is_symbol(n + 1)
    assert (n == "4", n == None, n != None) == (False, False, True)  # noqa: E711
    assert plain(divmod(n, 3)[0]) == 1
    assert plain(-n) == -4
    assert plain(+n) == 4
    assert sum([n, n]) == 8
    assert sorted([n, 3, 5]) == [3, 4, 5]


def test_sizes_are_plain_when_nothing_records() -> None:
    tape = Tape()
    n = size(4, tape)
    tape.recording = False
    assert type(n + 1) is int
    assert [n > 3, bool(n), n / 2, list(range(n))] == [True, True, 2.0, [0, 1, 2, 3]]
    assert tape.told == []


def test_flag_is_a_bool_and_reports_where_it_decides() -> None:
    tape = Tape()
    flag = Flag(True, tape.graph.placeholder("flag"), tape, "training")
    assert isinstance(flag, bool)
    assert not flag.used
    assert (1 if flag else 2) == 1
    assert flag.used
    assert (flag == True, flag != True, not flag, int(flag)) == (True, False, False, 1)  # noqa: E712
    assert set(tape.told) == {"value"}


def test_torch_code_that_wants_the_node_is_refused() -> None:
    with pytest.raises(CaptureError, match="`n` went into torch code"):
        size(4, Tape()).node  # noqa: B018
