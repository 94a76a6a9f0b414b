"""show_cuda_memory_consumption: bytes that can be told by hand, and nothing left behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from qtune.errors import ArgumentError
from qtune.profiler.live_bytes import StorageCounter
from qtune.utils.quant_profiler import show_cuda_memory_consumption

from .stages import X, prepared_net

FLOAT = 4


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(100, 50, bias=False), nn.ReLU(), nn.Linear(50, 10, bias=False))


ROWS = torch.randn(8, 100, generator=torch.Generator().manual_seed(0))
WEIGHTS = FLOAT * (100 * 50 + 50 * 10)


def measure(model: nn.Module, inputs: Any, tmp_path: Path, **options: Any) -> Any:
    return show_cuda_memory_consumption(model, inputs, "cpu", out_dir=tmp_path, **options)


def test_activations_are_counted_layer_by_layer(tmp_path: Path) -> None:
    report = measure(mlp(), ROWS, tmp_path)
    assert report.before == WEIGHTS + FLOAT * 8 * 100
    forward = [step for step in report.steps if step.phase == "forward"]
    assert [step.name for step in forward] == ["0", "1", "2"]
    hidden = FLOAT * 8 * 50
    # The relu's input is alive in its hook and freed behind it: autograd keeps the result only.
    grown = [step.allocated - report.before for step in forward]
    assert grown == [hidden, 2 * hidden, hidden + FLOAT * 8 * 10]
    backward = [step.name for step in report.steps if step.phase == "backward"]
    assert backward == ["2", "1", "0", ""]
    assert report.steps[-1].allocated == 2 * WEIGHTS  # the gradients; inputs and outputs are gone
    assert report.after == WEIGHTS
    assert report.peak >= max(step.allocated for step in report.steps)


def test_the_page_says_where_the_numbers_come_from(tmp_path: Path) -> None:
    measure(mlp(), ROWS, tmp_path)
    page = (tmp_path / "mem_info.html").read_text()
    assert "on cpu: bytes of the tensors that are alive" in page
    assert "Module Name" in page
    measure(mlp(), ROWS, tmp_path, file_name="other")
    assert (tmp_path / "other.html").exists()


def test_what_counts_as_a_layer(tmp_path: Path) -> None:
    report = measure(mlp(), ROWS, tmp_path, check_leaf_module=lambda m: isinstance(m, nn.ReLU))
    assert {step.name for step in report.steps} == {"1", ""}
    prepared = measure(prepared_net()[1], X, tmp_path)
    assert {"conv", "relu", "shared", "head"} <= {step.name for step in prepared.steps}


class Two(nn.Module):
    """Returns a pair, and reads its second input by name."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)

    def forward(self, x: Tensor, *, scale: Tensor) -> tuple[Tensor, Tensor]:
        y = self.norm(self.fc(x)) * scale
        return y, torch.rand_like(y)


def call() -> Any:
    from qtune.capture.inputs import Inputs

    return Inputs(torch.randn(8, 4), scale=torch.ones(4))


def test_other_outputs_need_a_backward_of_the_callers(tmp_path: Path) -> None:
    seen = []

    def backward(outputs: Any) -> None:
        seen.append(len(outputs))
        outputs[0].sum().backward()

    assert measure(Two(), call(), tmp_path, custom_backward=backward).steps
    assert seen == [2]
    with pytest.raises(ArgumentError, match="the model returns a tuple; pass custom_backward"):
        measure(Two(), call(), tmp_path)


@pytest.mark.parametrize("fails", [False, True])
def test_the_model_is_left_as_it_was(tmp_path: Path, fails: bool) -> None:
    model = Two().train()
    model.fc.weight.grad = torch.ones(4, 4)
    grad = model.fc.weight.grad
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    inputs = call()
    rng = torch.get_rng_state()

    def backward(outputs: Any) -> None:
        if fails:
            raise KeyboardInterrupt
        outputs[0].sum().backward()

    try:
        measure(model, inputs, tmp_path, custom_backward=backward)
    except KeyboardInterrupt:
        assert fails
    assert model.fc.weight.grad is grad
    assert torch.equal(grad, torch.ones(4, 4))
    assert model.norm.weight.grad is None
    assert all(torch.equal(model.state_dict()[name], value) for name, value in state.items())
    assert torch.equal(torch.get_rng_state(), rng)
    assert not any(m._forward_hooks for m in model.modules())
    assert all(m.training for m in model.modules())


def test_views_share_a_storage_and_freed_ones_no_longer_count() -> None:
    x = torch.zeros(10)
    with StorageCounter([x]) as counter:
        assert counter.now() == 40
        y = x.view(2, 5)
        assert counter.now() == 40
        z = x + 1
        assert counter.now() == 80
        del z
        assert counter.now() == 40
        assert counter.peak() == 80
        assert counter.peak() == 40
    assert y.numel() == 10


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_missing_gpu_is_named(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="no device cuda; pass torch.device"):
        show_cuda_memory_consumption(mlp(), ROWS, torch.device("cuda"), out_dir=tmp_path)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_is_asked_for_its_own_counters(tmp_path: Path) -> None:
    model = mlp()
    report = show_cuda_memory_consumption(model, ROWS, torch.device("cuda"), out_dir=tmp_path)
    assert report.source.startswith("torch.cuda")
    assert report.peak > report.before > 0
    assert {p.device.type for p in model.parameters()} == {"cpu"}


def test_a_model_without_gradients_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="the model's result has no gradient"):
        measure(nn.Sequential(nn.ReLU()), ROWS, tmp_path)
