"""docs/gate-files.md: its files run as it says, its tables are those of the code."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from qtune.cli import main
from qtune.testing.gatefile import kinds, read, tables

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "gate-files.md").read_text("utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)
COMMANDS = [
    shlex.split(line, comments=True)
    for kind, block in BLOCKS
    for line in block.splitlines()
    if not kind and line.startswith(("pytest ", "qtune "))
]


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """The files of the page."""
    monkeypatch.delenv("CI", raising=False)
    for kind, block in BLOCKS:
        name, _, content = block.partition("\n")
        if kind and name.startswith("# "):
            (pytester.path / name.removeprefix("# ")).write_text(content)
    return pytester


def test_the_commands_run_as_shown(project: pytest.Pytester) -> None:
    listed = project.runpytest("--collect-only", "-q")
    assert "\n".join(line for line in listed.outlines if "::" in line) + "\n" in TEXT
    assert len(COMMANDS) == 5
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


@pytest.mark.parametrize(
    "table",
    [tables.markdown(tables.MODEL_KEYS), tables.markdown(tables.CHECK_KEYS), kinds.markdown()],
    ids=["model", "check", "kinds"],
)
def test_tables_are_those_of_the_code(table: str) -> None:
    assert table in TEXT, f"put this table into docs/gate-files.md:\n{table}"
