"""``FloatFunctional`` of a model that was prepared in eager mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from qtune.errors import PrepareError
from qtune.nn.qat.op import QATOp
from qtune.ops.elementwise.float_functional import FunctionalMethods
from qtune.ops.registry import find_function

_UNKNOWN = "FloatFunctional"
_SUM = "sum"


def is_functional(module: nn.Module) -> bool:
    """Whether ``module`` is a ``FloatFunctional``: torch's or one of ours."""
    return any(cls.__name__ == "FloatFunctional" for cls in type(module).__mro__)


class FloatFunctional(FunctionalMethods, QATOp):
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

    def _sum(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        if _SUM not in self._modules:
            self.add_module(_SUM, QATOp("add", f"{self.name}.{_SUM}", float_type=_UNKNOWN))
            self.sum.group = self.group = self.group or self.name
        return self.sum(x, y)

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
