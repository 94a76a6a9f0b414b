"""Which forwards of a block are kept, and what the folder says afterwards."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from qtune.errors import AnalysisError
from qtune.profiler import ModelProfiler, read_profile
from qtune.quantization import QuantStub
from tests.analysis.nets import Block, calibrated
from tests.profiler.profiled import profiled


def test_an_unknown_name_is_answered_with_close_ones(tmp_path: Path) -> None:
    manager = profiled(Block().eval(), tmp_path, torch.rand(1, 3, 8, 8))
    name = next(iter(manager))
    with pytest.raises(KeyError, match=f"no operator '{name}9' was seen; close: {name}"):
        manager[f"{name}9"]
    with pytest.raises(KeyError, match=f"list.manager. has all {len(manager)}"):
        manager["§"]
    assert manager.get("§") is None
    assert name in manager


def test_the_folder_of_a_model_without_operators_says_so(tmp_path: Path) -> None:
    assert len(profiled(_Same(), tmp_path, torch.ones(2))) == 0
    with pytest.raises(AnalysisError, match="op_infos is empty: the model .* had no operators"):
        read_profile(tmp_path)


class _Same(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x


def _wait(*args: object) -> None:
    """Two threads are in one forward at the same time, unless one of them waits for its turn."""
    time.sleep(0.02)


@pytest.mark.parametrize("stage", ["float", "prepared"])
def test_forwards_of_several_threads_are_all_kept(stage: str, tmp_path: Path) -> None:
    inputs = [torch.rand(1, 2) for _ in range(4)]
    model: nn.Module = nn.Sequential(QuantStub(), nn.Linear(2, 2), nn.ReLU()).eval()
    if stage == "prepared":
        model = calibrated(model, torch.rand(4, 2))
    model.get_submodule("1").register_forward_hook(_wait)
    wanted = [model(x) for x in inputs]
    with ModelProfiler(model, tmp_path) as profiler, ThreadPoolExecutor(4) as pool:
        found = list(pool.map(model, inputs))
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
    manager = profiler.get_info_manager()
    names = [name for name in manager if "@" not in name]
    assert len(manager) == 4 * len(names)
    seen = [manager[f"{names[-1]}@{i}" if i else names[-1]].output for i in range(4)]
    assert all(any(torch.equal(one, out) for one in seen) for out in wanted)
