"""Kept integer modules give the kept bits: on this machine, in every mode."""

from __future__ import annotations

import json

import pytest

from qtune.bpu import compiler

from .zoo import HASHES, HERE, ZOO, digest


@pytest.fixture(scope="module")
def hashes() -> dict[str, str]:
    return json.loads(HASHES.read_text())


@pytest.mark.parametrize("mode", ["fast", "reference"])
@pytest.mark.parametrize("name", list(ZOO))
def test_kept_module_gives_the_kept_bits(name: str, mode: str, hashes: dict[str, str]) -> None:
    module = compiler.load(HERE / f"{name}.bc")
    assert digest(module[0], mode) == hashes[name]


def test_every_network_has_its_file(hashes: dict[str, str]) -> None:
    assert sorted(hashes) == sorted(ZOO) == sorted(path.stem for path in HERE.glob("*.bc"))
