"""docs/gate-files.md: its files run as it says, its tables are those of the code."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from qtune.cli import main
from qtune.testing.gatefile import kinds, read, tables

from ..testing import onnx_nets

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "gate-files.md").read_text("utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)
COMMANDS = [
    shlex.split(line, comments=True)
    for kind, block in BLOCKS
    for line in block.splitlines()
    if not kind and line.startswith(("pytest ", "qtune "))
]
ONNX_FILE = "# net.qtune.toml"


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """The files of the page."""
    monkeypatch.delenv("CI", raising=False)
    onnx_nets.write_project(pytester.path)
    for kind, block in BLOCKS:
        name, _, content = block.partition("\n")
        if kind and name.startswith("# ") and name != ONNX_FILE:
            (pytester.path / name.removeprefix("# ")).write_text(content)
    return pytester


def test_the_commands_run_as_shown(project: pytest.Pytester) -> None:
    listed = project.runpytest("--collect-only", "-q")
    assert "\n".join(line for line in listed.outlines if "::" in line) + "\n" in TEXT
    assert len(COMMANDS) == 6
    for program, *words in COMMANDS:
        done = project.runpytest(*words) if program == "pytest" else main(words)
        assert getattr(done, "ret", done) == 0, words


def test_the_fragment_holds_for_the_model_of_the_page(project: pytest.Pytester) -> None:
    path = project.path / "resnet.qtune.toml"
    (fragment,) = [b for kind, b in BLOCKS if kind == "toml" and not b.startswith("# ")]
    path.write_text(path.read_text().partition("[[check]]")[0] + fragment)
    assert len(read(path).checks) == 4
    project.runpytest("-m", "not qtune_slow").assert_outcomes(passed=2, xfailed=1, deselected=1)
    project.runpytest("-m", "qtune_slow").assert_outcomes(passed=1, deselected=3)


def test_the_file_of_an_onnx_model_runs(pytester: pytest.Pytester) -> None:
    onnx_nets.write_project(pytester.path)
    (block,) = [b for kind, b in BLOCKS if kind == "toml" and b.startswith(ONNX_FILE)]
    (pytester.path / "net.qtune.toml").write_text(block)
    result = pytester.runpytest("--qtune", "-rs")
    result.assert_outcomes(passed=5, skipped=1)  # image_quant, act, head, [others]; conv is in act
    result.stdout.fnmatch_lines(["*fused into act, which is compared"])


@pytest.mark.parametrize(
    "table",
    [tables.markdown(tables.MODEL_KEYS), tables.markdown(tables.CHECK_KEYS), kinds.markdown()],
    ids=["model", "check", "kinds"],
)
def test_tables_are_those_of_the_code(table: str) -> None:
    assert table in TEXT, f"put this table into docs/gate-files.md:\n{table}"
