"""How processes are started: spawned, and by torchrun."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from qtune.nn.prepared import PreparedModel
from qtune.nn.qat import iter_stubs
from qtune.quantization import FakeQuantState, auto_calibrate, get_default_qconfig, prepare

from ..ranks import RANKS, on_ranks

pytestmark = [
    pytest.mark.skipif(not dist.is_available(), reason="no torch.distributed"),
    pytest.mark.qtune_slow,  # new interpreters import torch
]

X = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(0))


def model() -> PreparedModel:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    net.qconfig = get_default_qconfig(  # type: ignore[assignment]
        activation_fake_quant="lsq", activation_qkwargs={"is_sync_quantize": True}
    )
    return prepare(net.eval(), X)


def calibrated(rank: int, prepared: PreparedModel) -> Any:
    """In a new interpreter, with a model that came through pickle."""
    auto_calibrate(DistributedDataParallel(prepared), [X * (1 + rank)])
    return {(name, kind): q.scale.detach().clone() for name, kind, q in iter_stubs(prepared)}


def test_a_prepared_model_goes_to_spawned_processes(tmp_path: Path) -> None:
    prepared = model()
    first, second = on_ranks(calibrated, tmp_path / "ranks", prepared, start_method="spawn")
    assert isinstance(first, dict), first
    auto_calibrate(prepared, [torch.cat([X, X * 2])])
    for name, kind, quantizer in iter_stubs(prepared):
        assert torch.equal(first[name, kind], second[name, kind])
        # float32 kernels sum in another order at another batch size
        torch.testing.assert_close(first[name, kind], quantizer.scale.detach(), rtol=1e-5, atol=0)


def test_a_script_runs_under_torchrun(tmp_path: Path) -> None:
    """The state that rank 0 saved loads in one process; only rank 0 shows a bar."""
    script, file = Path(__file__).with_name("launched.py"), tmp_path / "state.pt"
    options = ["--standalone", f"--nproc_per_node={RANKS}"]
    command = [sys.executable, "-m", "torch.distributed.run", *options, str(script), str(file)]
    environment = {**os.environ, "QTUNE_RUN_DIR": "", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert done.stderr.count(" 0/4 ") == 1
    saved = torch.load(file, weights_only=True)
    assert saved["states"][0] == saved["states"][1]
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten())
    alone = prepare(net.append(nn.Linear(64, 3)).eval(), X)
    alone.load_state_dict(saved["state"])
    assert all(bool(quantizer.observed) for _, _, quantizer in iter_stubs(alone))
    assert {q.state for _, _, q in iter_stubs(alone)} == {FakeQuantState.QAT}
