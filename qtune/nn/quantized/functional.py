"""``FloatFunctional`` of a converted model: the methods of the prepared one, on QTensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from qtune.errors import RunError
from qtune.nn.qat.op import QATOp
from qtune.nn.quantized.op import QuantizedOp
from qtune.ops.elementwise.float_functional import FunctionalMethods
from qtune.ops.registry import find_function

_SUM = "sum"


class QuantizedFunctional(FunctionalMethods, QuantizedOp):
    """One method of a ``FloatFunctional``, the one that was called while the model was calibrated.

    ``add_relu`` is a fused group of two operators.
    """

    def __init__(self, op: QATOp, *, group: str = "", **facts: Any) -> None:
        first = op._modules.get(_SUM)
        super().__init__([op], group=op.name if first is not None else group, **facts)
        if isinstance(first, QATOp):
            self.add_module(_SUM, QuantizedOp([first], group=op.name, **facts))

    def _sum(self, x: Tensor, y: Tensor) -> Any:
        first = self._modules.get(_SUM)
        if first is None:
            raise self._refused("add_relu")
        return first(x, y)

    def _run(self, function: Callable[..., Any], *args: Any) -> Any:
        found: Any = find_function(function)
        spec, target = found
        if spec.name != self.op:
            raise self._refused(spec.name)
        bound = target.bind(*args)
        own = self._frozen[0].attrs
        changed = {k: v for k, v in bound.attrs.items() if k not in own or own[k] != v}
        return self(*bound.tensors, **changed)

    def _refused(self, called: str) -> RunError:
        return RunError(
            f"{self.name}: it was calibrated as {self.op} and is called as {called}. Use one "
            "FloatFunctional for each call, and calibrate the model on calls like this one"
        )
