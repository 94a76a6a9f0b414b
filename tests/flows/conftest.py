from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from qtune import march

from . import digits


@pytest.fixture(autouse=True)
def _flow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A march, one thread, and run files away from the working directory."""
    monkeypatch.setenv("QTUNE_RUN_DIR", str(tmp_path / "run"))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with march.march("nash-e"):
        yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="package")
def float_net() -> nn.Module:
    """Trained with a fixed seed, 1.5 seconds; 0.99 of the hold-out digits."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    net: nn.Module = digits.example.train(epochs=8)
    torch.set_num_threads(threads)
    return net
