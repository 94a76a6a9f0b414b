"""A model in the hands of a user's callback: whatever it does to it, it is undone afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from qtune.capture.restore import Restorer, has_values, to_the_end


@contextmanager
def put_back(model: nn.Module) -> Iterator[None]:
    """Undo what the block does to ``model``.

    That is: values, dtypes, gradients and ``requires_grad`` of parameters, buffers, attributes,
    submodules, hooks and random state. Costs the memory of a second set of parameters and buffers.
    """
    held = [t for p in model.parameters() for t in (p, p.grad) if t is not None]
    kept: list[_Tensor | _Hooks] = [_Tensor(tensor) for tensor in held]
    kept += [_Hooks(module) for module in model.modules()]
    rest = Restorer(model)

    def restore() -> None:
        rest.restore()  # first: it gives the gradients and the dicts of hooks their places back
        for item in kept:
            item.restore()

    try:
        yield
    finally:
        to_the_end(restore)


class _Tensor:
    """A parameter or a gradient: where its values lie, and what they are."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self.data = tensor.data
        self.copy = tensor.detach().clone() if has_values(tensor) else None
        self.requires_grad = tensor.requires_grad

    def restore(self) -> None:
        self.tensor.data = self.data  # .half() and the like put other values in its place
        if self.copy is not None and not torch.equal(self.data, self.copy):
            self.data.copy_(self.copy)
        if self.tensor.requires_grad != self.requires_grad:
            self.tensor.requires_grad_(self.requires_grad)


class _Hooks:
    """The hooks of one module."""

    def __init__(self, module: nn.Module) -> None:
        dicts: list[dict[Any, Any]] = [
            value for name, value in vars(module).items() if "_hooks" in name and value is not None
        ]
        self.kept = [(hooks, dict(hooks)) for hooks in dicts]

    def restore(self) -> None:
        for hooks, before in self.kept:
            hooks.clear()
            hooks.update(before)
