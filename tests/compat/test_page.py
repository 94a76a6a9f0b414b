"""docs/how-to/move-from-the-toolchain.md: its code runs, its tables are those of the code."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from qtune.compat.roots import LEFT_OUT, PAGE, ROOTS, TOPS

TEXT = (Path(__file__).resolve().parents[2] / PAGE).read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    found = re.findall(r"^```(\w*)\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)
    return [code for name, code in found if name == language]


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def roots_table() -> str:
    rows = [
        (
            f"`{root.alias}`",
            f"`{root.target}`" + (f" ({', '.join(root.only)})" if root.only else ""),
        )
        for root in ROOTS.values()
        if root.target
    ]
    return table(("toolchain", "qtune"), rows)


def left_out_table() -> str:
    rows = [(f"`{name}`", *found) for name, found in LEFT_OUT.items()]
    return table(("name", "instead", "why"), rows)


@pytest.mark.parametrize("expected", [roots_table(), left_out_table()], ids=["roots", "left out"])
def test_the_tables_are_those_of_the_code(expected: str) -> None:
    assert expected in TEXT, f"put this table into {PAGE}:\n{expected}"


def test_the_code_runs_and_prints_what_the_page_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for block in blocks("python"):
        name, _, code = block.partition("\n")
        (tmp_path / name.removeprefix("# ")).write_text(code)
    ran = []
    for block in blocks("console"):
        command, _, expected = block.removeprefix("$ ").partition("\n")
        words = command.split()
        program = {"qtune": ["-m", "qtune"], "pytest": ["-m", "pytest", "-p", "no:cacheprovider"]}
        line = [sys.executable, *program.get(words[0], []), *words[1:]]
        done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        for part in expected.split("...\n"):
            assert part.strip() in done.stdout
        ran.append(words[0])
    assert ran == ["qtune", "python", "pytest"]
    inside = [sys.executable, "inside.py"]
    done = subprocess.run(inside, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_first_page_of_a_message_is_this_one() -> None:
    assert Path(PAGE).name == "move-from-the-toolchain.md"
    for top in TOPS:
        assert f"`{top}" in TEXT
