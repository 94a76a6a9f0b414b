"""docs/reports.md says what the schema and the code say."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from pytest_qtune import terminal
from pytest_qtune.gate_expression import OPERATORS, parse_all
from qtune.report.run_schema import markdown, run_schema

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "reports.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)


def test_page_has_the_fields_of_the_schema() -> None:
    table = markdown()
    assert table in TEXT, f"put this at the end of docs/reports.md:\n{table}"


def test_every_definition_is_on_the_page() -> None:
    assert all(
        f"**`{name}`**" in TEXT
        for name, part in run_schema()["$defs"].items()
        if "properties" in part
    )


def test_code_runs(capsys: pytest.CaptureFixture[str]) -> None:
    for block in blocks("python"):
        exec(compile(block, "docs/reports.md", "exec"), {})
    assert capsys.readouterr().out == "A run of pytest with qtune\n"


def test_gates_of_the_page_are_gates() -> None:
    (block,) = blocks("toml")
    listed = tomllib.loads(block)["tool"]["pytest"]["ini_options"]["qtune_gates"]
    assert len(parse_all(listed, "docs")) == len(listed) == 5
    assert all(f"`{op}`" in TEXT for op in OPERATORS)


def test_sample_has_the_columns_of_the_terminal() -> None:
    sample = blocks("")[0].splitlines()
    heads = [line.split() for line in sample if "limit" in line and "test" in line]
    checks = [name for name in terminal.HEAD if name not in ("", "baseline")]
    assert heads == [checks, [name for name in terminal.GATE_HEAD if name]]
