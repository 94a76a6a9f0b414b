"""A project with baselines, step by step."""

from __future__ import annotations

import json
from typing import Any

import pytest

from qtune.testing.baseline_file import BaselineFile

# in a process of its own a test says higher_is_better: asking the registry would load torch
TEST = """
class TestNet:
    def test_head(self, qtune_baseline):
        qtune_baseline.check("sqnr_db", {value}, max_drop=0.5, higher_is_better=True)
"""


HEAD = "TestNet.test_head::sqnr_db"


SEVERAL = """
def test_a(qtune_baseline):
    qtune_baseline.check("x", {a}, higher_is_better=True)

def test_b(qtune_baseline):
    qtune_baseline.check("x", {b}, higher_is_better=True)
    {more}
"""


class Workflow:
    """A project with one test file; each step edits it, runs it, or looks at what was stored."""

    def __init__(self, pytester: pytest.Pytester) -> None:
        self.pytester = pytester
        self.file = pytester.path / "__qtune__" / "test_net.json"

    def measures(self, value: float) -> None:
        """The one test measures ``value``."""
        self.test(TEST.format(value=value))

    def test(self, source: str, name: str = "test_net.py") -> None:
        path = self.pytester.path / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(source)
        for cached in path.parent.glob("__pycache__/*"):  # of the same size in the same second
            cached.unlink()

    def run(self, *args: str) -> pytest.RunResult:
        return self.pytester.runpytest(*args)

    def statuses(self, *args: str) -> dict[str, str]:
        """Run with a report; the status of each entry by key and name."""
        self.run("--qtune-json=q.json", *args)
        rows = json.loads((self.pytester.path / "q.json").read_text())["baselines"]
        return {f"{row['key']}::{row['name']}": row["status"] for row in rows}

    def stored(self) -> dict[str, Any]:
        """The stored values by key and name."""
        entries = BaselineFile.read(self.file).entries
        return {
            f"{key}::{name}": entry.value
            for key, named in entries.items()
            for name, entry in named.items()
        }
