"""Recording leaves the model, its surroundings and other threads as they were."""

from __future__ import annotations

import copy
import threading
import weakref

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qtune.capture import capture
from qtune.errors import CaptureError, GuardError

from .replay import assert_equal, assert_replays, called_modules, targets
from .test_recorder import SmallNet, image


def test_rng_and_batch_norm_statistics_and_attributes_are_left_alone() -> None:
    class Stateful(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(3)
            self.drop = nn.Dropout(0.5)
            self.calls = 0
            self.register_buffer("steps", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            self.cached = x * 2
            self.steps += 1
            x.add_(1)
            return self.drop(self.norm(x)) + torch.rand(3) + float(np.random.rand() > 2)

    model, x = Stateful().train(), image(4, 3)
    before, given = copy.deepcopy(model.state_dict()), x.clone()
    torch.manual_seed(3)
    np.random.seed(3)
    recorded = capture(model, x)
    assert torch.equal(torch.rand(2), torch.rand(2, generator=torch.Generator().manual_seed(3)))
    assert np.random.rand() == np.random.RandomState(3).rand()
    assert_equal(dict(model.state_dict()), dict(before))
    assert model.calls == 0
    assert not hasattr(model, "cached")
    assert model.training
    assert torch.equal(x, given)
    assert all(parameter.grad is None for parameter in model.parameters())
    drawn, changed, cached = recorded.report.notes
    assert "forward changes its input x in place" in changed
    assert "Python or NumPy" in drawn
    assert "forward sets cached to a computed tensor" in cached


def test_parameters_that_forward_changes_are_put_back() -> None:
    model = nn.Sequential(nn.Embedding(5, 3, max_norm=0.1))
    before = model[0].weight.detach().clone()
    capture(model, torch.tensor([0, 1]))
    assert torch.equal(model[0].weight, before)


def test_model_is_restored_when_forward_fails() -> None:
    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(3)

        def forward(self, x: Tensor) -> Tensor:
            self.mark = 1
            return self.norm(x).view(-1, 7)

    model = Broken()
    with pytest.raises(
        CaptureError, match=r"Broken raised RuntimeError while it ran on the example"
    ):
        capture(model, image(4, 3))
    assert not hasattr(model, "mark")
    assert torch.equal(model.norm.running_mean, torch.zeros(3))
    assert "training" not in vars(nn.Module)
    assert len([1]) == 1


def test_buffer_that_forward_replaces_is_updated_by_replays() -> None:
    class Average(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.zeros(3))

        def forward(self, x: Tensor) -> Tensor:
            self.mean = 0.5 * self.mean + 0.5 * x.mean(0)
            return x - self.mean

    model = Average()
    recorded = copy.deepcopy(capture(model, image(4, 3)))
    for seed in range(3):
        x = image(seed + 1, 3)
        assert torch.equal(recorded(x), model(x))
    assert torch.equal(recorded.mean, model.mean)


def test_dropout_by_function_follows_train_and_eval() -> None:
    class Dropped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(3, 3))

        def forward(self, x: Tensor) -> Tensor:
            return F.dropout(self.inner(x), 0.5, self.training)

    model = Dropped().eval()
    recorded = capture(model, image(4, 3))
    x = image(6, 3)
    assert torch.equal(recorded(x), model(x))
    recorded.train()
    torch.manual_seed(0)
    expected = F.dropout(model.inner(x), 0.5, True)
    torch.manual_seed(0)
    assert torch.equal(recorded(x), expected)


def test_autocast_and_no_grad_inside_forward_are_kept() -> None:
    class Modes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(4, 4)
            self.b = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                x = self.a(x)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return self.b(x) @ x.T

    model = Modes()
    recorded = assert_replays(model, image(2, 4), image(3, 4))
    copied = copy.deepcopy(recorded)
    out = copied(image(3, 4))
    assert out.dtype is torch.bfloat16
    out.sum().backward()
    assert copied.a.weight.grad is None
    assert copied.b.weight.grad is not None


def test_user_hooks_run_once_and_keep_working() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.ReLU()))
    seen: list[str] = []
    model[0].register_forward_hook(lambda m, a, out: seen.append("leaf"))
    model[1].register_forward_hook(lambda m, a, out: seen.append("container") or out * 2)
    recorded = capture(model, image(2, 3))
    assert seen == ["leaf", "container"]
    x = image(4, 3)
    assert torch.equal(recorded(x), model(x))
    seen.clear()
    recorded(x)
    assert seen == ["leaf"]


def test_gradients_are_those_of_the_model() -> None:
    model = SmallNet().eval()
    recorded = copy.deepcopy(capture(model, image(2, 3, 20, 20)))
    x = image(3, 3, 24, 24)
    model(x).pow(2).sum().backward()
    recorded(x).pow(2).sum().backward()
    for (name, ours), theirs in zip(recorded.named_parameters(), model.parameters(), strict=True):
        assert torch.equal(ours.grad, theirs.grad), name


def test_sizes_that_outlive_the_recording_are_plain() -> None:
    cache: dict[int, Tensor] = {}
    kept: list[int] = []

    class Caching(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            n = x.shape[0]
            kept.append(n)
            if n not in cache:
                cache[n] = torch.arange(n)[:, None]
            return x + cache[n]

    model = Caching()
    recorded = capture(model, image(4, 3))
    nodes = len(recorded.graph.nodes)
    assert kept[0] + 1 == 5
    assert type(kept[0] + 1) is int
    assert torch.equal(model(image(4, 3)), recorded(image(4, 3)))
    assert len(recorded.graph.nodes) == nodes


def test_table_looked_up_by_a_size_is_guarded() -> None:
    tables = {4: image(4, 1), 5: image(5, 1)}

    class Cached(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + tables[x.shape[0]]

    recorded = assert_replays(Cached(), image(4, 3))
    assert len(recorded.report.constants) == 1
    with pytest.raises(GuardError, match=r"shape\[0\] == 4"):
        recorded(image(5, 3))


def test_inference_mode_outside_and_inside() -> None:
    class Inside(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            with torch.inference_mode():
                y = x * 2
                y[:, 0] *= 3
                v = y.view(-1)
                y.add_(1)
                return v + 1

    assert_replays(Inside(), image(2, 3), image(4, 3))
    model = SmallNet().eval()
    with torch.inference_mode():
        recorded = capture(model, image(1, 3, 20, 20))
    recorded(image(2, 3, 20, 20)).sum().backward()
    assert recorded.head.weight.grad is not None


def test_other_threads_are_not_recorded() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5))
    results: list[object] = []

    def work() -> None:
        out = model(torch.ones(2, 3))
        results.append((len(out), type(len(out)), model.training, type(model.training)))

    class Threaded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
            return self.inner(x)

    recorded = capture(Threaded(), image(2, 3))
    assert results == [(2, int, True, bool)]
    assert called_modules(recorded) == ["inner"]


def test_error_that_the_model_catches_still_ends_the_recording() -> None:
    class Catching(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            try:
                return x + torch.from_numpy(x.numpy())
            except Exception:  # noqa: BLE001 - as users write it
                return x

    with pytest.raises(CaptureError, match="hands a tensor that depends on the inputs"):
        capture(Catching(), image(2, 3))


def test_calls_on_constants_only_are_computed_once() -> None:
    class Table(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            rows, columns = torch.meshgrid(torch.arange(3), torch.arange(4), indexing="ij")
            fresh = torch.zeros(3, 4)
            fresh[0] = 5.0
            noise = torch.rand(4)
            return x * (rows + columns * 2).float() + fresh + noise * 0

    recorded = assert_replays(Table(), image(2, 3, 4), image(5, 3, 4))
    assert [info.shape for info in recorded.report.constants] == [(3, 4)]
    found = targets(recorded)
    assert torch.arange not in found
    assert torch.zeros in found  # it is changed in place
    assert torch.rand in found


def test_tensors_of_the_example_are_let_go() -> None:
    made: list[weakref.ref[Tensor]] = []

    class Watched(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = x + 1
            made.append(weakref.ref(y))
            return y * 2

    recorded = capture(Watched(), image(1, 4))
    assert made[0]() is None
    assert recorded(image(1, 4)).shape == (1, 4)
