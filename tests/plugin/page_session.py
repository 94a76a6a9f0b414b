"""Plays a page: writes its files and runs its commands in order, in this process."""

from __future__ import annotations

import io
import re
import runpy
import shlex
import shutil
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from qtune.cli import main

FENCE = re.compile(r"^```([^\n`]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILES = ("python", "toml")
_NAME = re.compile(r"# ([\w.-]+\.(?:py|toml))\n")


class PageSession:
    """The folder of a reader who follows a page.

    A block of python or toml that begins with ``# name.py`` is that file, one without continues
    the last file. A ``console`` block has commands behind ``$``, and lines of their output, in
    order; ``...`` stands for anything, also for lines between.
    """

    def __init__(self, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pytester = pytester
        self.monkeypatch = monkeypatch
        self.path = pytester.path
        self.last = ""
        monkeypatch.delenv("CI", raising=False)
        monkeypatch.delenv("COLUMNS", raising=False)  # tables are cut at a screen's width
        monkeypatch.syspath_prepend(pytester.path)

    def play(self, page: Path) -> list[str]:
        """All blocks of a page; returns the commands."""
        played: list[str] = []
        for language, text in FENCE.findall(page.read_text(encoding="utf-8")):
            if language in FILES:
                self.write(text)
            elif language == "console":
                played += self.run_all(text)
        return played

    def write(self, text: str) -> None:
        """A block that is a file, or goes on with the last one."""
        named = _NAME.match(text)
        if named is not None:
            self.last = named[1]
            (self.path / self.last).write_text(text[named.end() :], encoding="utf-8")
            return
        with (self.path / self.last).open("a", encoding="utf-8") as file:
            file.write(f"\n\n{text}")

    def run_all(self, text: str) -> list[str]:
        """The commands of a console block."""
        parts = [part.partition("\n") for part in re.split(r"^\$ ", text, flags=re.M)[1:]]
        for command, _, shown in parts:
            output = self.run(command)
            pattern = ".*".join(map(re.escape, re.split(r"\s*\.\.\.\s*", shown.rstrip("\n"))))
            assert re.search(pattern, output, re.S), f"$ {command}\n{output}\nis not:\n{shown}"
        return [command for command, _, _ in parts]

    def run(self, command: str) -> str:
        """One command; what it prints."""
        self._forget()
        program, *words = shlex.split(command, comments=True)
        if program == "export":
            name, _, value = words[0].partition("=")
            self.monkeypatch.setenv(name, value)
            return ""
        if program == "cp":
            shutil.copyfile(self.path / words[0], self.path / words[1])
            return ""
        if program == "pytest":
            return "\n".join(self.pytester.runpytest_inprocess(*words).outlines)
        out = io.StringIO()
        with redirect_stdout(out):
            if program == "qtune":
                main(words)
            else:
                assert program == "python", f"the page runs {command!r}"
                runpy.run_path(str(self.path / words[0]), run_name="__main__")
        return out.getvalue()

    def _forget(self) -> None:
        """A command is a process of its own: it imports the files as they now are."""
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None)
            if file and Path(file).parent == self.path:
                del sys.modules[name]
        shutil.rmtree(self.path / "__pycache__", ignore_errors=True)
