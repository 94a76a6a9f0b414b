"""A comparison shared out: each layer's part, and nothing that gets lost."""

from __future__ import annotations

import pytest

from qtune.testing.gatefile.layers import comparisons
from qtune.testing.result import AssertionResult, LayerResult


def whole(*layers: tuple[str, float], ok: bool | None = None) -> AssertionResult:
    """A comparison with the limit cosine >= 0.9."""
    parts = [LayerResult(name, value, value >= 0.9, 1 - value) for name, value in layers]
    worst = max(parts, key=lambda layer: layer.badness)
    return AssertionResult(
        "consistency",
        "net",
        worst.ok if ok is None else ok,
        worst.name,
        f"COSINE {worst.value:g}",
        ">= 0.9",
        {"cosine": worst.value},
        {"cosine": 0.9},
        parts,
        "COSINE of each operator",
        table="no counterpart in the baseline, not compared: extra",
        advice="Look.",
    )


def test_a_layer_has_its_own_number_and_no_others() -> None:
    layers = comparisons(lambda: [whole(("stem", 0.95), ("body", 0.5), ("head", 0.8))])
    (stem,), (body,) = layers.of("stem"), layers.of("body")
    assert stem.ok
    assert stem.headline == "consistency: stem: got COSINE 0.95, limit >= 0.9"
    assert not body.ok
    assert body.metrics == {"cosine": 0.5}
    assert [layer.name for layer in body.layers] == ["body"]
    assert layers.of("conv") == []


def test_an_operator_without_an_item_fails_among_the_others() -> None:
    layers = comparisons(lambda: [whole(("stem", 0.95), ("new", 0.5), ("body", 0.2))])
    (rest,) = layers.others({"stem", "body"})
    assert not rest.ok
    assert (rest.where, rest.got) == ("new", "COSINE 0.5")
    assert "not compared: extra" in rest.table


def test_a_bad_comparison_without_a_bad_layer_fails_among_the_others() -> None:
    layers = comparisons(lambda: [whole(("stem", 0.95), ok=False)])
    assert [result.ok for result in layers.others({"stem"})] == [False]


def test_where_every_operator_has_an_item_nothing_is_left() -> None:
    layers = comparisons(lambda: [whole(("stem", 0.95), ("body", 0.5))])
    (rest,) = layers.others({"stem", "body"})
    assert rest.ok
    assert rest.got == "no other operator"


def test_an_error_is_made_once_and_raised_for_every_layer() -> None:
    calls = []

    def compare() -> list[AssertionResult]:
        calls.append(1)
        raise ValueError("no")

    layers = comparisons(compare)
    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            layers.of("stem")
    assert calls == [1]
