"""Which march takes which element-wise call (toolchain_facts 7.1 and 7.2)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from qtune.ops.registry import spec

MAP = (2, 64, 8, 8)


def refusal(
    op: str,
    series: str,
    inputs: tuple[tuple[int, ...] | None, ...],
    output: tuple[int, ...],
    attrs: Mapping[str, Any] | None = None,
) -> str | None:
    rules = [rule for rule in spec(op).march if series in rule.series]
    if not rules:
        return "not there"
    (rule,) = rules
    return rule.check(attrs or {}, inputs, output) if rule.check else None  # type: ignore[arg-type]


def test_bernoulli_adds_no_numbers_and_few_channels() -> None:
    assert refusal("add", "bernoulli", (MAP, MAP), MAP) is None
    assert "number" in (refusal("mul", "bernoulli", (MAP, None), MAP) or "")
    wide = (1, 4096, 2, 2)
    for op in ("add", "sub"):
        assert "2048 channels" in (refusal(op, "bernoulli", (wide, wide), wide) or "")


def test_bayes_broadcasts_one_operand() -> None:
    assert refusal("add", "bayes", (MAP, (1, 64, 1, 1)), MAP) is None
    both = ((2, 64, 1, 1), (1, 1, 8, 8))
    assert "only one operand" in (refusal("add", "bayes", both, MAP) or "")
    assert refusal("add", "nash", both, MAP) is None


@pytest.mark.parametrize("op", ["abs", "clamp", "gt", "where", "maximum", "log", "prelu", "amax"])
def test_bernoulli_lacks_most_functions(op: str) -> None:
    assert refusal(op, "bernoulli", (MAP, MAP), MAP) == "not there"


@pytest.mark.parametrize("op", ["relu", "relu6", "exp", "gelu", "sigmoid", "silu", "tanh"])
def test_bernoulli_has_these_in_int8(op: str) -> None:
    (rule,) = (rule for rule in spec(op).march if "bernoulli" in rule.series)
    assert rule.inputs == rule.outputs == ("qint8",)


def test_reductions_have_their_dimensions() -> None:
    channel, space = {"dim": [1]}, {"dim": [-2, -1]}
    assert refusal("mean", "bernoulli", (MAP,), (2, 8, 8), channel) is None
    assert "channels" in (refusal("mean", "bernoulli", (MAP,), (2, 64), space) or "")
    assert refusal("mean", "bayes", (MAP,), (2, 64), space) is None
    assert "batch" in (refusal("sum", "bayes", (MAP,), (), {"dim": None}) or "")
    assert refusal("sum", "bernoulli", (MAP,), (64, 8, 8), {"dim": [0]}) is None


def test_nash_reduces_at_most_65535_elements() -> None:
    big = (1, 1, 300, 300)
    for op in ("mean", "sum", "amax"):
        assert "65535" in (refusal(op, "nash", (big,), (1, 1), {"dim": [2, 3]}) or "")
    assert "32767" in (refusal("argmax", "nash", ((1, 40000),), (1,), {"dim": 1}) or "")
