"""Shared facts for the meta tests: which files belong to the project."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("qtune", "pytest_qtune")


def package_files() -> list[Path]:
    return sorted(p for name in PACKAGES for p in (ROOT / name).rglob("*.py"))


@pytest.fixture(scope="session")
def trees() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text()) for path in package_files()}
