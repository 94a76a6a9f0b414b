from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from qtune import march


@pytest.fixture(autouse=True)
def _quantization(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A march, seeded weights, and run files away from the working directory."""
    monkeypatch.setenv("QTUNE_RUN_DIR", str(tmp_path / "run"))
    torch.manual_seed(0)
    with march.march("nash-e"):
        yield
