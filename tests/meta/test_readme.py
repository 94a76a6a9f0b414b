"""Every command block of README and examples runs: python here, sh in ``.ci/run``.

The python blocks of a docs page that says so are one file.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from .conftest import ROOT

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "examples").rglob("*.md"))]
JOINED = [
    ROOT / "docs" / name
    for name in (
        "analysis.md",
        "bpu.md",
        "capture.md",
        "checks.md",
        "compiler.md",
        "consistency.md",
        "deploy.md",
        "distributed.md",
        "eager-and-fx.md",
        "fake_quantizers.md",
        "observers.md",
        "older-tools.md",
        "onnx-debugger.md",
        "onnx.md",
        "profiler.md",
        "qconfig.md",
        "training.md",
        "tuning.md",
    )
]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.M | re.S)
PRELUDE = """
import torch
from torch import nn

def make_model():
    torch.manual_seed(0)
    conv, norm, head = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Linear(8 * 36, 10)
    return nn.Sequential(conv, norm, nn.ReLU(), nn.Flatten(), head).eval()

calibration_batches = [torch.randn(4, 3, 8, 8) for _ in range(4)]
holdout = calibration_batches[0]
"""


def blocks(language: str) -> Iterator[tuple[str, str]]:
    for page in PAGES:
        for index, (kind, text) in enumerate(FENCE.findall(page.read_text())):
            if kind == language:
                yield f"{page.relative_to(ROOT)}#{index}", text


def commands(text: str) -> Iterator[str]:
    """Single commands of a block, without comments and line continuations."""
    for line in text.replace("\\\n", " ").splitlines():
        yield from (part.strip() for part in line.split("#")[0].split("&&") if part.strip())


@pytest.mark.parametrize(("where", "text"), [pytest.param(w, t, id=w) for w, t in blocks("python")])
def test_python_blocks_run(where: str, text: str, tmp_path: Path) -> None:
    if "def test_" in text:
        (tmp_path / "test_block.py").write_text(PRELUDE + text)
        run_in(tmp_path, "-m", "pytest", "--qtune", "-q", "-p", "no:cacheprovider", ".")
    else:
        (tmp_path / "block.py").write_text(text)
        run_in(tmp_path, "block.py")


def run_in(folder: Path, *command: str) -> None:
    env = {**os.environ, "QTUNE_RUN_DIR": ""}
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, capture_output=True, text=True, env=env
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("page", [pytest.param(page, id=page.stem) for page in JOINED])
def test_python_blocks_of_a_page_are_one_file(page: Path, tmp_path: Path) -> None:
    text = "".join(text for kind, text in FENCE.findall(page.read_text()) if kind == "python")
    (tmp_path / "test_page.py").write_text(text)
    run_in(tmp_path, "test_page.py")
    if "def test_" in text:
        run_in(tmp_path, "-m", "pytest", "--qtune", "-q", "-p", "no:cacheprovider", ".")


def known_to_ci() -> set[str]:
    """The commands of ``.ci/run``, with its variables written as a user would."""
    text = (ROOT / ".ci" / "run").read_text()
    text = text.replace('"$python" -m pip', "pip").replace('"$python"', "python")
    return {normal(line) for line in text.replace("\\\n", " ").splitlines()}


def normal(command: str) -> str:
    """A command without what does not change its meaning (where reports and caches go, -q)."""
    for noise in (r"-p no:cacheprovider", r"-q\b", r"--qtune-html=\S+", r'"\$work[^"]*"'):
        command = re.sub(noise, "", command)
    return " ".join(command.split())


@pytest.mark.parametrize(("where", "text"), [pytest.param(w, t, id=w) for w, t in blocks("sh")])
def test_sh_blocks_are_what_ci_runs(where: str, text: str) -> None:
    known = known_to_ci()
    for command in commands(text):
        if command in (".ci/run", ". .venv/bin/activate", "python3.11 -m venv .venv"):
            continue
        assert normal(command) in known, f"{where}: .ci/run does not run {command!r}"


def test_no_page_names_a_block_without_a_language() -> None:
    for page in PAGES:
        kinds = {kind for kind, _ in FENCE.findall(page.read_text())}
        assert kinds <= {"python", "sh", ""}, f"{page}: {kinds}"
