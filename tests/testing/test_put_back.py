"""Whatever a callback does to a model, the model is as before."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from qtune.testing.put_back import put_back


def _model() -> nn.Sequential:
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1, bias=False))
    for parameter in model[0].parameters():
        parameter.grad = torch.ones_like(parameter)
    model[2].weight.requires_grad_(False)
    model[0].register_forward_hook(_hook)
    return model


def _hook(*_: object) -> None:
    """A user's hook."""


def _facts(model: nn.Module) -> list[object]:
    facts: list[object] = []
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        grad = None if tensor.grad is None else (id(tensor.grad), tensor.grad.tolist())
        kept = name, id(tensor), tensor.dtype, tensor.tolist(), tensor.requires_grad, grad
        facts += [*kept, tensor.data_ptr()]
    for name, module in model.named_modules():
        hooks = {key: list(value.items()) for key, value in vars(module).items() if "_hooks" in key}
        facts += [name, id(module), module.training, hooks, sorted(vars(module))]
    return facts


def _add(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.data.add_(1.0)


def _train(model: nn.Module) -> None:
    model.train()
    model(torch.randn(4, 2)).sum().backward()
    model[2].weight.requires_grad_(True)
    torch.optim.SGD(model.parameters(), lr=0.5).step()


def _rehook(model: nn.Module) -> None:
    model[0]._forward_hooks.clear()
    model[1].register_forward_pre_hook(_hook)
    model[2].register_full_backward_hook(_hook)


def _rebuild(model: nn.Module) -> None:
    model[0] = nn.Identity()
    del model[1]
    model.note = "mine"


def _interrupted(model: nn.Module) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    "change",
    [_add, _train, _rehook, _rebuild, nn.Module.half, nn.Module.double, nn.Module.zero_grad],
)
def test_nothing_of_it_stays(change: Callable[[nn.Module], object]) -> None:
    model = _model()
    before = _facts(model)
    with put_back(model):
        change(model)
        assert _facts(model) != before
    assert _facts(model) == before


def test_nothing_stays_of_what_ends_in_an_error() -> None:
    model = _model()
    before = _facts(model)
    with pytest.raises(KeyboardInterrupt), put_back(model):
        _interrupted(model.half())
    assert _facts(model) == before


def test_lazy_parameters_have_no_values_to_keep() -> None:
    model = nn.LazyLinear(2)
    with put_back(model):
        model.train(False)
    assert model.training
    assert torch.nn.parameter.is_lazy(model.weight)
