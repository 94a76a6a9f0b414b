"""The generated pages are those of the present registry, and complete."""

from __future__ import annotations

import importlib.util
import re
from types import ModuleType

import pytest

from qtune.hbir.domain import domain_ops
from qtune.ops import registry

from .conftest import ROOT

_KEY = re.compile(r'"(qtune\.[a-z_]+)"')


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["operators.md", "hbir.md"])
def test_committed_page_equals_the_generated_one(generate: ModuleType, name: str) -> None:
    path = ROOT / "docs" / name
    assert path.read_text(encoding="utf-8") == generate.pages()[path], (
        "run python docs/generate.py and commit the result"
    )


def test_every_operator_has_one_row(generate: ModuleType) -> None:
    found = re.findall(r"^\| \*\*(\w+)\*\*", generate.operators_page(), re.M)
    assert sorted(found) == sorted(registry.specs())


def test_every_domain_operator_has_one_row(generate: ModuleType) -> None:
    found = re.findall(r"^\| `(\w+)` \|", generate.hbir_page(), re.M)
    assert found == sorted(domain_ops())


def test_every_metadata_key_is_described(generate: ModuleType) -> None:
    written = {
        key
        for path in (ROOT / "qtune" / "hbir").glob("*.py")
        for key in _KEY.findall(path.read_text())
        if not key.startswith("qtune.hbir")
    }
    described = set(re.findall(r"^\| `(qtune\.\w+)` \|", generate.hbir_page(), re.M))
    assert described == written


def test_tables_are_well_formed(generate: ModuleType) -> None:
    for text in generate.pages().values():
        rows = [line for line in text.splitlines() if line.startswith("|")]
        assert rows
        for before, after in zip(rows, rows[1:], strict=False):
            if after.startswith("| ---"):
                assert before.count(" | ") == after.count(" | ")
        assert all(line.endswith("|") for line in rows)
        assert "\u00a0" not in text
