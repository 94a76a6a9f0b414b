"""docs/how-to/build-an-onnx-model.md: its blocks run in order, its commands end well."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from qtune.cli.main import main

PAGE = "how-to/build-an-onnx-model.md"
TEXT = (Path(__file__).parents[3] / "docs" / PAGE).read_text(encoding="utf-8")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.M | re.S)


def blocks(kind: str) -> str:
    return "\n".join(text for name, text in FENCE.findall(TEXT) if name == kind)


def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    held: dict[str, object] = {}
    exec(compile(blocks("python"), PAGE, "exec"), held)
    files = sorted(path.name for path in (tmp_path / "build").glob("net_*"))
    named = re.findall(r"^\| `(net_\S+)` \|", TEXT, re.M)
    assert files == sorted(named)
    assert len(list((tmp_path / "build/calibration_data/image").glob("*.npy"))) == 4
    commands = [line[2:] for line in blocks("console").splitlines()]
    try:
        import yaml  # noqa: F401
    except ImportError:
        commands = [line for line in commands if "--config" not in line]
    (tmp_path / "convert.yaml").write_text(blocks("yaml"))
    for line in commands:
        assert main(shlex.split(line)[1:]) == 0, line
