from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from qtune import march


@pytest.fixture(autouse=True, scope="module")
def _quantization(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A march, one thread, and run files away from the working directory."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch, march.march("nash-e"):
        patch.setenv("QTUNE_RUN_DIR", str(tmp_path_factory.mktemp("run")))
        yield
    torch.set_num_threads(threads)
