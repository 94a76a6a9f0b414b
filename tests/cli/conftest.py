"""A folder with a model and data in it, and the command run in this process."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from qtune.cli import main

from ..surroundings import no_run_files as no_run_files

NETS = '''
import torch
from torch import nn


class Net(nn.Module):
    """conv, relu, conv, relu, linear; everything fuses."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 24, 3, padding=1)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(24, 24, 3, padding=1)
        self.relu2 = nn.ReLU()
        self.fc = nn.Linear(24, 4)

    def forward(self, x):
        x = self.relu2(self.conv2(self.relu1(self.conv1(x))))
        return self.fc(x.mean((2, 3)))


class Shared(Net):
    """One relu for both convolutions, and one layer that never runs."""

    def __init__(self):
        super().__init__()
        self.relu2 = self.relu1
        self.spare = nn.Linear(4, 4)


class Planted(Net):
    """One channel behind relu1 is 60 times larger, and scaled back by conv2."""

    def __init__(self):
        super().__init__()
        with torch.no_grad():
            self.conv1.weight[3] *= 60
            self.conv1.bias[3] *= 60
            self.conv2.weight[:, 3] /= 60


def make():
    print("the factory prints")
    return Net()


def batches():
    return [(torch.randn(2, 3, 8, 8), torch.zeros(2)) for _ in range(4)]


def lazily():
    for _ in range(4):
        yield torch.randn(2, 3, 8, 8), 0


def squared(baseline, other):
    return ((baseline - other) ** 2).mean()
'''


@dataclass(frozen=True)
class Done:
    """What one run of the command gave."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.out)
        return found


Run = Callable[..., Done]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current directory, with ``nets.py`` in it; its modules are forgotten afterwards."""
    (tmp_path / "nets.py").write_text(NETS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv("QTUNE_MARCH", raising=False)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        file = getattr(sys.modules[name], "__file__", None)
        if file is not None and Path(file).is_relative_to(tmp_path):
            del sys.modules[name]


@pytest.fixture
def run(folder: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the command with these words; its status, standard output and error."""

    def one(*argv: str) -> Done:
        capsys.readouterr()
        status = main(argv)
        captured = capsys.readouterr()
        return Done(status, captured.out, captured.err)

    return one


def call(command: str, model: str, *more: str, data: str = "nets:batches") -> tuple[str, ...]:
    """The words of a usual call."""
    return (command, model, "--data", data, "--march", "nash-e", *more)
