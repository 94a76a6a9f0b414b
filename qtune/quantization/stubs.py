"""``FloatFunctional``, and the stubs that mark the quantized region."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qtune.ops.quant.stubs import DeQuantStub, QuantStub

__all__ = ["DeQuantStub", "FloatFunctional", "QuantStub"]


class FloatFunctional(nn.Module):
    """Functions as methods of a module, so that each has a name of its own in the model.

    In a prepared model the operator bears the module's name. Use one instance for one call: an
    instance that is called twice has one scale for both results.
    """

    def __init__(self) -> None:
        super().__init__()
        self.activation_post_process = nn.Identity()

    def forward(self, *args: Any) -> Any:
        """Not to be called; use the methods."""
        raise TypeError("FloatFunctional is no layer: call its methods, for example .add(x, y)")

    def add(self, x: Tensor, y: Tensor | float) -> Tensor:
        """``x + y``."""
        return self._done(torch.add(x, y))

    def sub(self, x: Tensor, y: Tensor | float) -> Tensor:
        """``x - y``."""
        return self._done(torch.sub(x, y))

    def mul(self, x: Tensor, y: Tensor | float) -> Tensor:
        """``x * y``."""
        return self._done(torch.mul(x, y))

    def matmul(self, x: Tensor, y: Tensor) -> Tensor:
        """``x @ y``."""
        return self._done(torch.matmul(x, y))

    def cat(self, x: Sequence[Tensor], dim: int = 0) -> Tensor:
        """The tensors one behind the other along ``dim``."""
        return self._done(torch.cat(list(x), dim=dim))

    def add_relu(self, x: Tensor, y: Tensor) -> Tensor:
        """``relu(x + y)``."""
        return self._done(F.relu(torch.add(x, y)))

    def add_scalar(self, x: Tensor, y: float) -> Tensor:
        """``x + y`` with a number."""
        return self._done(torch.add(x, y))

    def mul_scalar(self, x: Tensor, y: float) -> Tensor:
        """``x * y`` with a number."""
        return self._done(torch.mul(x, y))

    def _done(self, result: Tensor) -> Tensor:
        done: Tensor = self.activation_post_process(result)
        return done
