"""Scripts of the toolchain run inside of this process, in a folder of their own."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from qtune.compat import run, uninstall
from qtune.compat.install import ACTIVE, PREFER, finder
from qtune.compat.roots import TOPS
from qtune.modes import get_consistency_level
from qtune.profiler.metric import Metric
from qtune.qat_mode import ConsistencyStrategy

SCRIPTS = Path(__file__).resolve().parents[1] / "flows" / "compat"
REGISTERED = ("ce_loss_with_gt", "distill_loss", "loss")

Script = Callable[..., dict[str, Any]]


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No test leaves aliases, in this process or for its children."""
    monkeypatch.delenv(PREFER, raising=False)
    yield
    left = finder() is not None or ACTIVE in os.environ
    uninstall()
    assert not left
    assert not {name for name in sys.modules if name.partition(".")[0] in TOPS}


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Script]:
    """``script("quick_start.py")`` runs it in an empty folder and returns its names."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QTUNE_RUN_DIR", str(tmp_path / "run"))
    threads, level = torch.get_num_threads(), get_consistency_level()
    torch.set_num_threads(1)
    yield lambda name, *args: run([str(SCRIPTS / name), *args])
    torch.set_num_threads(threads)
    ConsistencyStrategy.set_consistency_level(level)
    for name in REGISTERED:
        Metric.unregister(name)
