"""Every test here prepares models for nash-e and leaves no run directory behind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from qtune.march import march


@pytest.fixture(autouse=True)
def nash(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("QTUNE_RUN_DIR", "")
    torch.manual_seed(0)
    with march("nash-e"):
        yield
