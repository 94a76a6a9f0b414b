"""``FloatFunctional`` of a model that was prepared in eager mode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from qtune.errors import PrepareError
from qtune.nn.qat.op import QATOp
from qtune.ops.registry import find_function

_UNKNOWN = "FloatFunctional"


def is_functional(module: nn.Module) -> bool:
    """Whether ``module`` is a ``FloatFunctional``: torch's or one of ours."""
    return any(cls.__name__ == "FloatFunctional" for cls in type(module).__mro__)


class FloatFunctional(QATOp):
    """The methods of a ``FloatFunctional``; the result has the module's one fake-quantize.

    Which operator it is shows the first call; a call of another one raises ``PrepareError``, since
    two operators can't share a scale.
    """

    is_called: bool = False

    @classmethod
    def of(cls, op: QATOp) -> FloatFunctional:
        """Take the place of a prepared ``add``, with its fake-quantize and qconfig."""
        new = cls(op.op, op.name, {}, float_type=op.float_type)
        new.activation_post_process = op.activation_post_process
        for index, quantizer in op.input_fake_quants.items():
            new.quantize_input(int(index), quantizer)
        new.qconfig, new.float_repr = op.qconfig, ""
        new.train(op.training)
        return new

    def add(self, x: torch.Tensor, y: Any) -> Any:
        """``x + y``."""
        return self._run(torch.add, x, y)

    def sub(self, x: torch.Tensor, y: Any) -> Any:
        """``x - y``."""
        return self._run(torch.sub, x, y)

    def mul(self, x: torch.Tensor, y: Any) -> Any:
        """``x * y``."""
        return self._run(torch.mul, x, y)

    def matmul(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        """``x @ y``."""
        return self._run(torch.matmul, x, y)

    def cat(self, x: Sequence[torch.Tensor], dim: int = 0) -> Any:
        """The tensors one behind the other along ``dim``."""
        return self._run(torch.cat, list(x), dim)

    def add_scalar(self, x: torch.Tensor, y: float) -> Any:
        """``x + y`` with a number."""
        return self.add(x, y)

    def mul_scalar(self, x: torch.Tensor, y: float) -> Any:
        """``x * y`` with a number."""
        return self.mul(x, y)

    def add_relu(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        """``relu(x + y)``; the sum before the relu has no scale of its own."""
        if "sum" not in self._modules:
            self.sum = QATOp("add", f"{self.name}.sum", float_type=_UNKNOWN)
            self.sum.group = self.group = self.group or self.name
        return self._run(torch.relu, self.sum(x, y))

    def _run(self, function: Callable[..., Any], *args: Any) -> Any:
        found = find_function(function)
        if found is None:
            raise PrepareError(f"{self.name}: the registry has no {function}")
        spec, target = found
        bound = target.bind(*args)
        if not self.is_called:
            self.op, self.attrs, self.is_called = spec.name, dict(bound.attrs), True
        elif self.op != spec.name:
            raise PrepareError(
                f"{self.name}: this FloatFunctional was called as {self.op} and now as "
                f"{spec.name}, but has one scale. Use one FloatFunctional for each call"
            )
        changed = {k: v for k, v in bound.attrs.items() if self.attrs.get(k) != v}
        return self(*bound.tensors, **changed)
