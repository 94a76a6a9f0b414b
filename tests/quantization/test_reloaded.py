"""Saved models of every kind, in a new process."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from qtune import jit

from .reloaded import IMAGES, MODELS, X, result

ROOT = Path(__file__).parents[2]


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_files_give_the_same_bits_in_a_new_process(tmp_path: Path) -> None:
    for name, make in MODELS.items():
        model = make()
        torch.save(result(name, model), tmp_path / f"{name}.results")
        torch.save(model, tmp_path / f"{name}.pt")
        torch.save(model.state_dict(), tmp_path / f"{name}.state")
        if name.startswith("converted") and "fast" not in name:
            example = IMAGES if "eager" in name else X
            jit.save(torch.jit.trace(model, example, strict=False), tmp_path / f"{name}.jit")
    run = subprocess.run(
        [sys.executable, "-m", "tests.quantization.reloaded", str(tmp_path)],
        cwd=ROOT,
        # compiled kernels would be compiled again; their bits are those of the others
        env={**os.environ, "QTUNE_RUN_DIR": "", "QTUNE_NATIVE": "off"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-2000:]


@pytest.mark.parametrize("name", ["calibrated", "lsq", "eager", "branches", "converted_fast"])
def test_a_copy_shares_nothing(name: str) -> None:
    model = MODELS[name]()
    expected = result(name, model)
    other = copy.deepcopy(model)
    assert all(map(torch.equal, result(name, other), expected))
    tensors = [{t.data_ptr() for t in m.state_dict().values() if t.numel()} for m in (model, other)]
    assert not tensors[0] & tensors[1]
    assert not set(map(id, model.modules())) & set(map(id, other.modules()))
    with torch.no_grad():
        for tensor in (*other.parameters(), *other.buffers()):
            if tensor.is_floating_point():
                tensor.mul_(1.5)
    assert all(map(torch.equal, result(name, model), expected))


@pytest.mark.parametrize("name", MODELS)
def test_nothing_stays_behind_on_the_old_device(name: str) -> None:
    model = MODELS[name]().to("meta")
    tensors = dict([*model.named_parameters(), *model.named_buffers()])
    assert [key for key, tensor in tensors.items() if not tensor.is_meta] == []
    hidden = [
        (path, key)
        for path, module in model.named_modules()
        for key, value in vars(module).items()
        if isinstance(value, torch.Tensor) and not value.is_meta
    ]
    assert hidden == []
