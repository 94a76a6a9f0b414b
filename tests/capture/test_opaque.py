"""What the torch function mode doesn't see: recorded right all the same, or refused."""

from __future__ import annotations

import copy
import pickle
import warnings
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from qtune.capture import capture
from qtune.errors import CaptureError

from .replay import assert_replays, called_modules, targets
from .test_guards import Lambda, data


class Swish(torch.autograd.Function):
    """A gradient that is not the one of its forward, to see which is used."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x) * x.shape[0]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 100


def test_autograd_function_is_one_call_and_keeps_its_backward() -> None:
    recorded = assert_replays(Lambda(lambda x: Swish.apply(x) + 1), data(2, 3), data(5, 4))
    assert Swish.apply in targets(recorded)
    x = data(2, 3).requires_grad_()
    recorded(x).sum().backward()
    assert torch.equal(x.grad, torch.full((2, 3), 100.0))


@pytest.fixture
def script() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated; people still have it
        yield torch.jit.script


def scripted_sum(x: Tensor) -> Tensor:
    return torch.zeros(x.size(0)) + x.sum(1) * 2


def test_scripted_function_is_one_call(script: Any) -> None:
    function = script(scripted_sum)
    recorded = assert_replays(Lambda(lambda x: function(x) + 1), data(2, 3), data(5, 4))
    assert function in targets(recorded)


def test_scripted_module_is_one_call(script: Any) -> None:
    model = nn.Sequential(script(nn.Sequential(nn.Linear(3, 4), nn.ReLU())), nn.Linear(4, 2))
    recorded = assert_replays(model, data(2, 3), data(5, 3))
    assert called_modules(recorded) == ["0", "1"]


def test_scripted_model_is_refused(script: Any) -> None:
    with pytest.raises(CaptureError, match="the model is TorchScript"):
        capture(script(nn.Sequential(nn.Linear(3, 4))), data(2, 3))


def test_compiled_modules_and_functions_are_recorded_as_written() -> None:
    class Compiled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.compile(nn.Sequential(nn.Linear(3, 4), nn.ReLU()), backend="eager")
            self.own = nn.Linear(4, 2)
            self.own.compile(backend="eager")
            self.function = torch.compile(lambda x: x * 2, backend="eager")

        def forward(self, x: Tensor) -> Tensor:
            return self.function(self.own(self.layer(x)))

    model = Compiled()
    recorded = capture(model, data(2, 3))
    assert called_modules(recorded) == ["layer._orig_mod.0", "layer._orig_mod.1", "own"]
    assert "mul" in targets(recorded)
    x = data(5, 3)
    with torch.compiler.set_stance("force_eager"):
        assert torch.equal(recorded(x), model(x))


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed_blocks_are_entered(reentrant: bool) -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = nn.Sequential(nn.Linear(3, 3), nn.ReLU())

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(self.block, x, use_reentrant=reentrant) * 2

    model = Checkpointed()
    x = data(2, 3).requires_grad_()
    recorded = capture(model, x)
    assert called_modules(recorded) == ["block.0", "block.1"]
    other = data(4, 3).requires_grad_()
    assert torch.equal(recorded(other), model(other))


def test_full_backward_hooks_do_not_disturb() -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(3, 3), nn.ReLU()), nn.Linear(3, 2))
    model[0].register_full_backward_hook(lambda m, a, b: None)
    x = data(2, 3).requires_grad_()
    recorded = capture(model, x)
    assert called_modules(recorded) == ["0.0", "0.1", "1"]
    assert torch.equal(recorded(x), model(x))


def test_iteration_over_tensors_with_zip() -> None:
    class Zipped(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return torch.stack([a * b for a, b in zip(x, y, strict=True)])

    assert_replays(Zipped(), (data(3, 2), data(3, 2)), (data(3, 5), data(3, 5)))


def test_custom_operators_are_one_call() -> None:
    @torch.library.custom_op("qtune_tests::twice", mutates_args=())
    def twice(x: Tensor) -> Tensor:
        return x * 2

    def forward(x: Tensor) -> Tensor:
        return twice(x) + torch.ops.aten.relu(x) + torch.ops.aten.add.Tensor(x, x)

    recorded = assert_replays(Lambda(forward), data(2, 3), data(4, 3))
    assert torch.ops.qtune_tests.twice.default in targets(recorded)


def by_numpy(x: Tensor) -> Tensor:
    return x + torch.from_numpy(np.exp(x.numpy()))


def by_array(x: Tensor) -> Tensor:
    return x + torch.as_tensor(np.asarray(x) * 2)


def by_dlpack(x: Tensor) -> Tensor:
    return x + torch.from_dlpack(x)


def by_capsule(x: Tensor) -> Tensor:
    return x + torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(x))


def by_pickle(x: Tensor) -> Tensor:
    return pickle.loads(pickle.dumps(x)) * 2


def by_seed(x: Tensor) -> Tensor:
    torch.manual_seed(0)
    return x + torch.rand(3)


def by_generator(x: Tensor) -> Tensor:
    return x + torch.rand(3, generator=torch.Generator().manual_seed(1))


def by_branches(x: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, lambda t: t * 2, lambda t: t * 3, (x,))


def by_vmap(x: Tensor) -> Tensor:
    return torch.func.vmap(lambda row: row * 2)(x)


def by_grad(x: Tensor) -> Tensor:
    return torch.func.grad(lambda y: (y * y).sum())(x)


def by_parameter(x: Tensor) -> Tensor:
    return F.linear(x, nn.Parameter(x * 2))


def by_legacy_constructor(x: Tensor) -> Tensor:
    return x + torch.Tensor(1, 3).zero_()


def by_detached_memory(x: Tensor) -> Tensor:
    return x + torch._C._nn.gelu(torch.Tensor._make_subclass(Tensor, x))


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (by_numpy, "`numpy` hands a tensor"),
        (by_array, "`__array__` hands a tensor"),
        (by_dlpack, "`__dlpack__` hands a tensor"),
        (by_capsule, "shares the memory of a recorded one"),
        (by_pickle, "in code that recording can't see"),
        (by_seed, "seeds torch's random generator"),
        (by_generator, "a random generator is an argument"),
        (by_vmap, "torch.func.vmap"),
        (by_grad, "torch.func transforms"),
        (by_parameter, "shares the memory of a recorded one"),
        (by_detached_memory, "shares the memory of a recorded one"),
        (by_legacy_constructor, "in code that recording can't see"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_computation_that_cannot_be_seen_is_refused(function: Any, message: str) -> None:
    with pytest.raises(CaptureError, match=message) as raised:
        capture(Lambda(function), data(2, 3))
    assert "test_opaque.py:" in str(raised.value)


def test_torch_cond_is_refused() -> None:
    with pytest.raises(CaptureError, match="HigherOrderOperator cond"):
        capture(Lambda(by_branches), data(2, 3))


def test_numpy_of_constants_is_allowed() -> None:
    def forward(x: Tensor) -> Tensor:
        return x * torch.from_numpy(torch.arange(3).numpy() * 2.0)

    assert_replays(Lambda(forward), data(2, 3), data(4, 3))


def test_view_of_a_parameter_taken_before_forward_is_refused() -> None:
    class Kept(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(data(3, 3))
            self.turned = self.weight.data.t()

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.turned

    with pytest.raises(CaptureError, match="a view that was taken before forward"):
        capture(Kept(), data(2, 3))


def test_parametrized_layers_are_entered() -> None:
    class Double(nn.Module):
        def forward(self, weight: Tensor) -> Tensor:
            return weight * 2

    model = nn.Sequential(nn.Linear(3, 3))
    nn.utils.parametrize.register_parametrization(model[0], "weight", Double())
    recorded = assert_replays(model, data(2, 3), data(4, 3))
    assert called_modules(recorded) == []
    assert "0.parametrizations.weight.original" in targets(recorded)


def test_graph_with_opaque_calls_pickles() -> None:
    recorded = capture(Opaque(), data(2, 3))
    again = pickle.loads(pickle.dumps(recorded))
    assert targets(again) == targets(recorded)
    assert torch.equal(again(data(4, 3)), recorded(data(4, 3)))
    assert torch.equal(copy.deepcopy(recorded)(data(4, 3)), recorded(data(4, 3)))


class Opaque(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = Swish.apply(x) + torch.ops.aten.relu.default(x)
        y = y.expand(torch.broadcast_shapes(y.shape, (1, 3)))
        return F.max_pool1d(y[None], 2) + torch.special.expm1(y).sum()
