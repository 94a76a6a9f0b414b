"""docs/plugin.md: its code runs, its table is that of the options, its names exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import qtune.testing
from pytest_qtune import options
from qtune.testing import OnnxStages

from ..testing import onnx_nets

PAGE = Path(__file__).resolve().parents[2] / "docs" / "plugin.md"
TEXT = PAGE.read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    found = re.findall(r"^```(\w*)\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)
    return [code for name, code in found if name == language]


def test_code_blocks_run(pytester: pytest.Pytester) -> None:
    onnx_nets.write_project(pytester.path)
    built = OnnxStages(pytester.path / "model.onnx", onnx_nets.images(), march="nash-e")
    (pytester.path / "calibrated.onnx").write_bytes(built.calibrated.proto.SerializeToString())
    built.quantized_bc.save(pytester.path / "model.bc")
    for block in blocks("python"):
        name, _, code = block.partition("\n")
        (pytester.path / name.removeprefix("# ")).write_text(code)
    result = pytester.runpytest("--qtune", "--junitxml=junit.xml", "--qtune-html=qtune.html")
    assert result.parseoutcomes().keys() - {"warnings"} == {"passed"}
    assert {"junit.xml", "qtune.html"} <= {path.name for path in pytester.path.iterdir()}


def test_option_table_is_the_one_of_the_code() -> None:
    table = options.markdown()
    assert table in TEXT, f"put this table into docs/plugin.md:\n{table}"


def test_every_assertion_is_described() -> None:
    names = [name for name in qtune.testing.__all__ if name.startswith("assert_")]
    for name in names:
        assert f"**`{name}(" in TEXT


def test_sample_failure_keeps_the_width() -> None:
    sample = next(block for block in blocks("") if "got COSINE" in block)
    assert len(sample.splitlines()[0]) <= 80
