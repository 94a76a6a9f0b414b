"""docs/cli.md: its commands run in order, give what it shows, and end as it says."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from qtune.cli import commands, main
from qtune.cli.main import parser

from .conftest import Run

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "cli.md").read_text()
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.M | re.S)
PYTHON = [text for kind, text in FENCE.findall(PAGE) if kind == "python"]
CONSOLE = [text for kind, text in FENCE.findall(PAGE) if kind == "console"]


def session() -> list[tuple[str, int, list[str]]]:
    """Command, status (``# 1`` behind it), and the lines that its output has."""
    found: list[tuple[str, int, list[str]]] = []
    for line in "".join(CONSOLE).splitlines():
        if line.startswith("$ "):
            words, _, status = line[2:].partition("  # ")
            found.append((words, int(status or 0), []))
        else:
            found[-1][2].append(line)
    return found


def test_the_session_runs_as_shown(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "nets.py").write_text(PYTHON[0])
    assert len(session()) > 10
    for words, status, shown in session():
        if words.startswith("export "):
            name, _, value = words.removeprefix("export ").partition("=")
            monkeypatch.setenv(name, value)
            continue
        program, *argv = shlex.split(words)
        assert program == "qtune"
        done = run(*argv)
        assert done.status == status, f"{words}\n{done.out}{done.err}"
        for line in shown:
            pattern = re.escape(line).replace(re.escape("..."), ".*")
            assert re.search(f"^{pattern}$", done.out, re.M), f"{words}: {line}\n{done.out}"
    page = (folder / "horizon_quant_analysis" / "index.html").read_text()
    for title in (
        "Commands",
        "Structure and march",
        "Outputs",
        "Operators",
        "Sensitivity",
        "Tuning",
        "Tensors",
    ):
        assert f">{title}</h2>" in page


def test_the_python_block_runs_the_module_in_a_process(folder: Path) -> None:
    (folder / "nets.py").write_text(f"print('noise')\n{PYTHON[0]}")
    done = subprocess.run([sys.executable, "-c", PYTHON[1]], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_command_and_every_option_of_the_page_exists() -> None:
    helped = parser().format_help()
    for command in commands.COMMANDS:
        assert f"`qtune {command.name}`" in PAGE
        assert command.name in helped
    known = {option for c in commands.COMMANDS for option in options_of(c)}
    used = set(re.findall(r"(?<![\w-])--[a-z][\w-]*", PAGE))
    assert used <= known, used - known


def options_of(command: commands.Command) -> list[str]:
    import argparse

    one = argparse.ArgumentParser()
    command.add_arguments(one)
    return list(one._option_string_actions)


def test_help_is_whole(capsys: pytest.CaptureFixture[str]) -> None:
    for command in commands.COMMANDS:
        assert main([command.name, "--help"]) == 0
        assert "--json" in capsys.readouterr().out
