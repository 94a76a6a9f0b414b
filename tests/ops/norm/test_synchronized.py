"""A SyncBatchNorm of a prepared model, in two processes (gloo)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import multiprocessing, nn

from qtune.march import march
from qtune.modes import qat_mode
from qtune.quantization import FakeQuantState, prepare, set_fake_quantize

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="no torch.distributed")

RANKS, BATCH = 2, 4


def net(cls: Any) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 6, 3), cls(6), nn.ReLU())


def whole_batch() -> torch.Tensor:
    return torch.randn(RANKS * BATCH, 3, 7, 7, generator=torch.Generator().manual_seed(1)) * 3


def step(model: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    y = model(x)
    y.square().sum().backward()
    grads = {f"{k} grad": v.grad for k, v in model.named_parameters() if v.grad is not None}
    stats = {k: v for k, v in model.state_dict().items() if "running" in k or "tracked" in k}
    return y.detach(), {**grads, **stats}


def worker(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    rendezvous = f"file://{folder}/rendezvous"
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=RANKS)
    with march("nash-e"), qat_mode("with_bn"):
        model = prepare(net(nn.SyncBatchNorm).eval(), whole_batch()).train()
    set_fake_quantize(model, FakeQuantState._FLOAT)  # torch itself trains it on a GPU only
    own = whole_batch().chunk(RANKS)[rank]
    torch.save(step(model, own), f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def test_two_processes_normalize_by_both_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QTUNE_RUN_DIR", "")
    multiprocessing.start_processes(worker, (str(tmp_path),), nprocs=RANKS, start_method="fork")
    found = [torch.load(tmp_path / f"{rank}.pt") for rank in range(RANKS)]
    expected, values = step(net(nn.BatchNorm2d).train(), whole_batch())
    # float32 sums of another order
    assert torch.allclose(torch.cat([y for y, _ in found]), expected, rtol=1e-4, atol=1e-5)
    for name, value in values.items():
        each = [other[name] for _, other in found]
        total = sum(each) if "grad" in name else each[0]
        assert torch.allclose(total, value, rtol=1e-3, atol=1e-3), name
        assert "grad" in name or torch.equal(each[0], each[1])
