from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from qtune import march


@pytest.fixture(autouse=True)
def _quantized(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A march, one thread, seeded weights, no run files."""
    monkeypatch.setenv("QTUNE_RUN_DIR", "")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with march.march("nash-e"):
        yield
    torch.set_num_threads(threads)
