"""What tests of prepared models start from; a folder's conftest imports the fixture it needs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from qtune import march


@pytest.fixture(autouse=True)
def no_run_files(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A march, one thread, seeded weights; ``prepare`` writes no files."""
    monkeypatch.setenv("QTUNE_RUN_DIR", "")
    with _emulated():
        yield


@pytest.fixture(autouse=True)
def run_files_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A march, one thread, seeded weights, and run files away from the working directory."""
    monkeypatch.setenv("QTUNE_RUN_DIR", str(tmp_path / "run"))
    with _emulated():
        yield


@contextmanager
def _emulated() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with march.march("nash-e"):
        yield
    torch.set_num_threads(threads)
