"""docs/models.md and the tables of the zoos belong together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from .page import page
from .zoos import ZOOS

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
LEAST = {"timm": 60, "transformers": 45, "smp": 10}
"""How many architectures of each zoo have to pass at least."""


def row(**given: Any) -> dict[str, Any]:
    empty = {"zoo": "timm", "name": "net", "step": "", "problem": "", "is_refusal": False}
    facts = {"equal": "bits", "sizes": 2, "refused": [], "operators": 9, "floats": []}
    return json.loads(json.dumps({**empty, **facts, "prepare_s": 0.25, **given}))


@pytest.mark.parametrize("zoo", ["own", *LEAST])
def test_the_page_has_every_architecture_of_the_tables(zoo: str) -> None:
    text = PAGE.read_text()
    names = [architecture.name for architecture in ZOOS[zoo]()]
    assert names
    assert [n for n in names if f"| {n} |" not in text and f", {n}, at the step" not in text] == []


@pytest.mark.parametrize("zoo", LEAST)
def test_enough_architectures_pass(zoo: str) -> None:
    line = next(x for x in PAGE.read_text().splitlines() if x.startswith(f"| {zoo} |"))
    assert int(line.split("|")[2]) >= LEAST[zoo]


def test_a_page_counts_what_passes_is_refused_and_fails() -> None:
    refused = row(
        name="b", step="prepare", problem="NotImplementedError: no\nform", is_refusal=True
    )
    text = page([row(), refused, row(name="c", step="float state", problem="differs")])
    assert "| timm | 1 | 1 | 1 |" in text
    assert "| net | bits | 2 | 9 | 0 | 0.2 |" in text
    assert "* refused, b, at the step prepare: NotImplementedError: no form" in text
    assert "* fail, c, at the step float state: differs" in text


def test_a_refused_size_stands_with_its_guard() -> None:
    guard = "guard `x.shape[2] == 64` from padding.py:28 does not hold (got 96): ..."
    text = page([row(sizes=1, refused=[guard])])
    assert "| 1, 1 refused: `x.shape[2] == 64` (padding.py:28) |" in text


def test_samples_of_a_single_module_are_counted() -> None:
    text = page([row(zoo="module_db", name=f"nn.ReLU {i}") for i in range(3)])
    assert "| nn.ReLU | 3 | 0 | 0 |" in text
