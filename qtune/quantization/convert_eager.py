"""What ``convert`` does with ``FloatFunctional`` and decomposed layers in a tree of modules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from qtune.errors import ConvertError
from qtune.nn.qat import QATOp
from qtune.nn.qat.functional import FloatFunctional
from qtune.nn.quantized.wiring import External, Made, Wiring
from qtune.quantization.eager_layer import EagerComposite

Replace = Callable[[Sequence[QATOp], Wiring | None], nn.Module]


class QuantizedFunctional(FloatFunctional):
    """The methods of a ``FloatFunctional``, each on the integer operator ``run``."""

    def __init__(self, op: FloatFunctional, run: nn.Module) -> None:
        super().__init__(op.op, op.name, op.attrs, float_type=op.float_type)
        self.is_called, self.float_repr = True, ""
        self.run = run

    def forward(self, *operands: Any, **dynamic: Any) -> Any:
        """Run the operator."""
        return self.run(*operands, **dynamic)

    def add_relu(self, x: Any, y: Any) -> Any:
        """``relu(x + y)``."""
        return self.run(x, y)


def convert_eager(tree: nn.Module, replace: Replace) -> dict[QATOp, nn.Module]:
    """What stands for the operators of ``tree`` whose calls are not those of one operator.

    ``replace(ops, wiring)`` makes the integer module of some operators. Decomposed layers keep the
    order of their parts.
    """
    for module in tree.modules():
        if isinstance(module, EagerComposite):
            module.keep_plan()
    functionals = (module for module in tree.modules() if isinstance(module, FloatFunctional))
    return {module: _functional(module, replace) for module in functionals}


def _functional(op: FloatFunctional, replace: Replace) -> nn.Module:
    if not op.is_called:
        raise ConvertError(
            f"convert: {op.name}: which operator this FloatFunctional is shows its first call; run "
            "the model once before convert, or remove the FloatFunctional"
        )
    total = op._modules.get("sum")
    if isinstance(total, QATOp):
        calls = (((External(0), External(1)), {}), ((Made(0),), {}))
        return QuantizedFunctional(op, replace([total, op], Wiring(calls, 2)))
    return QuantizedFunctional(op, replace([op], None))
