"""docs/how-to/baselines.md: its files and commands, in order, give the output it shows."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "baselines.md"
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)


def test_every_step_gives_the_output_of_the_page(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.syspath_prepend(pytester.path)
    for language, text in BLOCKS:
        first, _, rest = text.partition("\n")
        if language == "python":
            (pytester.path / first.removeprefix("# ")).write_text(rest)
        else:
            show(pytester, first, rest.splitlines())


def show(pytester: pytest.Pytester, command: str, lines: list[str]) -> None:
    """Run ``$ pytest ...``; ``...`` stands for any lines, the last one for its beginning."""
    for cached in pytester.path.glob("__pycache__/*"):  # of the same size in the same second
        cached.unlink()
    result = pytester.runpytest(*shlex.split(command)[2:])
    patterns = [re.sub(r"([\[\]])", r"[\1]", line) for line in lines if line != "..."]
    result.stdout.fnmatch_lines([*patterns[:-1], f"*{patterns[-1]}*"])


def test_every_kind_of_value_is_stored_and_compared(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CI", raising=False)
    code = next(text for _, text in BLOCKS if text.startswith("# test_model.py"))
    pytester.makepyfile(test_model=code)
    pytester.runpytest("--qtune-update=new").assert_outcomes(passed=3)
    pytester.runpytest().assert_outcomes(passed=3)
