"""Every function that torch lets one override is an operator's, or stays float for a reason."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from itertools import combinations

import pytest
import torch.overrides

from qtune.ops import registry
from qtune.ops.uncovered import UNCOVERED, reason_of


def overridable() -> Iterator[tuple[str, bool]]:
    """Each function by its full name, and whether an operator takes it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.overrides touches deprecated names
        found = torch.overrides.get_overridable_functions()
    for functions in found.values():
        for function in functions:
            name = torch.overrides.resolve_name(function) or str(function)
            short = name.rpartition(".")[2]
            if short in ("__get__", "__set__", "__delete__"):
                continue  # attributes; .T and its kin are a spelling of transpose
            is_method = name.startswith("torch.Tensor.")
            known = registry.find_method(short) if is_method else registry.find_function(function)
            yield name, known is not None


def short_name(name: str) -> str:
    return name.rpartition(".")[2].rstrip("_")


def is_internal(name: str) -> bool:
    """Dunder methods that no operator of Python calls on data, and torch's private ones."""
    return name.rpartition(".")[2].startswith("_")


ALL = sorted(set(overridable()))


def test_torch_has_functions_to_walk() -> None:
    assert len(ALL) > 1000


def test_every_function_is_covered_or_stays_float_for_a_reason() -> None:
    missing = [
        name
        for name, known in ALL
        if not known and not is_internal(name) and reason_of(short_name(name)) is None
    ]
    assert missing == [], "register them, or say in qtune/ops/uncovered.py why not"


def test_nothing_stays_float_that_an_operator_takes() -> None:
    uncovered = {short_name(name) for name, known in ALL if not known}
    stale = sorted({name for names in UNCOVERED.values() for name in names} - uncovered)
    assert stale == [], "take them out of qtune/ops/uncovered.py"


def test_each_name_has_one_reason() -> None:
    for (one, first), (other, second) in combinations(UNCOVERED.items(), 2):
        assert not first & second, (one, other)


@pytest.mark.parametrize(
    "name",
    ["torch.Tensor.__rmod__", "torch.Tensor.__rfloordiv__", "torch.Tensor.__lshift__"],
)
def test_python_operators_that_stay_float_are_known(name: str) -> None:
    assert (name, False) in ALL
    operators = [n for n, known in ALL if not known and n.rpartition(".")[2].startswith("__")]
    arithmetic = {
        "__add__",
        "__radd__",
        "__sub__",
        "__rsub__",
        "__mul__",
        "__rmul__",
        "__neg__",
        "__truediv__",
        "__rtruediv__",
        "__pow__",
        "__rpow__",
        "__matmul__",
        "__and__",
        "__or__",
        "__xor__",
        "__invert__",
        "__lt__",
        "__le__",
        "__eq__",
        "__ne__",
        "__gt__",
        "__ge__",
        "__getitem__",
        "__setitem__",
        "__mod__",
        "__floordiv__",
        "__abs__",
        "__pos__",
    }
    assert not arithmetic & {n.rpartition(".")[2] for n in operators}
