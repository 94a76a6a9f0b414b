"""FloatFunctional: functions as methods of a module, as torch's class of that name offers them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qtune.errors import ArgumentError


class FunctionalMethods:
    """The methods, for the float class and what takes its place in prepared and converted models.

    Each says by :meth:`_run` which torch function it is.
    """

    def add(self, x: Tensor, y: Tensor | float) -> Any:
        """``x + y``."""
        return self._run(torch.add, x, y)

    def sub(self, x: Tensor, y: Tensor | float) -> Any:
        """``x - y``."""
        return self._run(torch.sub, x, y)

    def mul(self, x: Tensor, y: Tensor | float) -> Any:
        """``x * y``."""
        return self._run(torch.mul, x, y)

    def matmul(self, x: Tensor, y: Tensor) -> Any:
        """``x @ y``."""
        return self._run(torch.matmul, x, y)

    def cat(self, x: Sequence[Tensor], dim: int = 0) -> Any:
        """The tensors one behind the other along ``dim``."""
        return self._run(torch.cat, list(x), dim)

    def add_scalar(self, x: Tensor, y: float) -> Any:
        """``x + y`` with a number."""
        return self.add(x, y)

    def mul_scalar(self, x: Tensor, y: float) -> Any:
        """``x * y`` with a number."""
        return self.mul(x, y)

    def add_relu(self, x: Tensor, y: Tensor) -> Any:
        """``relu(x + y)``; the sum before the relu has no scale of its own."""
        return self._run(F.relu, self._sum(x, y))

    def _run(self, function: Callable[..., Any], *args: Any) -> Any:
        """The result of ``function``, with what the class does to results."""
        raise NotImplementedError

    def _sum(self, x: Tensor, y: Tensor) -> Any:
        """The sum within ``add_relu``."""
        return torch.add(x, y)


class FloatFunctional(FunctionalMethods, nn.Module):
    """Functions as methods of a module, so that each has a name of its own in the model.

    In a prepared model the operator bears the module's name. Use one instance for one call: an
    instance that is called twice has one scale for both results.
    """

    def __init__(self) -> None:
        super().__init__()
        self.activation_post_process = nn.Identity()

    def forward(self, *args: Any) -> Any:
        """Not to be called; use the methods."""
        raise ArgumentError(
            "FloatFunctional is called through its methods, for example .add(x, y); it is no layer"
        )

    def _run(self, function: Callable[..., Any], *args: Any) -> Any:
        return self.activation_post_process(function(*args))
