"""FloatFunctional: arithmetic as a module, as torch's class of that name offers it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from qtune.errors import ArgumentError


def _add_relu(x: torch.Tensor, y: Any) -> torch.Tensor:
    return F.relu(torch.add(x, y))


_OPERATIONS: dict[str, Callable[..., torch.Tensor]] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "cat": torch.cat,
    "matmul": torch.matmul,
    "add_relu": _add_relu,
}


class FloatFunctional(nn.Module):
    """Operators of two tensors under a module's name; each call is one plain torch operator.

    The methods call the module itself, so that what they do is recorded under its name. It keeps
    no statistics: every call in a model gets a scale of its own, one object used twice as well.
    """

    def forward(self, operation: str, *operands: Any) -> torch.Tensor:
        """Run one of the operations below by name; use the methods instead."""
        if operation not in _OPERATIONS:
            raise ArgumentError(
                f"FloatFunctional is called through its methods ({', '.join(_OPERATIONS)}, "
                f"add_scalar, mul_scalar), got {operation!r}"
            )
        return _OPERATIONS[operation](*operands)

    def _run(self, operation: str, *operands: Any) -> torch.Tensor:
        result: torch.Tensor = self(operation, *operands)
        return result

    def add(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """``x + y``."""
        return self._run("add", x, y)

    def sub(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """``x - y``."""
        return self._run("sub", x, y)

    def mul(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """``x * y``."""
        return self._run("mul", x, y)

    def matmul(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """``x @ y``."""
        return self._run("matmul", x, y)

    def cat(self, tensors: Sequence[torch.Tensor], dim: int = 0) -> torch.Tensor:
        """Concatenate along ``dim``."""
        return self._run("cat", tensors, dim)

    def add_scalar(self, x: torch.Tensor, y: float) -> torch.Tensor:
        """``x + y`` with a number."""
        return self._run("add", x, y)

    def mul_scalar(self, x: torch.Tensor, y: float) -> torch.Tensor:
        """``x * y`` with a number."""
        return self._run("mul", x, y)

    def add_relu(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """``relu(x + y)``."""
        return self._run("add_relu", x, y)
