"""The node cases of the onnx package: none fails, and the docs state what passes."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

import pytest

from tests.meta.conftest import ROOT


@pytest.fixture(scope="module")
def cases() -> ModuleType:
    path = ROOT / "docs" / "onnx_cases.py"
    spec = importlib.util.spec_from_file_location("docs_onnx_cases", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the package's reference code overflows
def test_no_case_fails(cases: ModuleType) -> None:
    failed = [item for item in cases.outcomes() if item.result == cases.FAILED]
    assert not failed


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_docs_state_what_passes(cases: ModuleType) -> None:
    text = (ROOT / "docs" / "onnx.md").read_text(encoding="utf-8")
    assert cases.page() in text, "run python docs/generate.py and commit the result"


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_most_cases_pass(cases: ModuleType) -> None:
    passed = [item for item in cases.outcomes() if item.result == cases.PASSED]
    assert len(passed) > 500
