"""``PreservedOp``: an operator that stays in its QAT form inside a converted model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch import nn

from qtune.nn.qat.op import QATOp
from qtune.nn.quantized.qtensor import QTensor
from qtune.nn.quantized.wiring import Wiring
from qtune.ops.spec import Rule
from qtune.quantizers.fake_quantize import FakeQuantize


class PreservedOp(nn.Module):
    """Runs prepared operators in float with their fake-quantizes, between integer ones.

    Operands that are codes are dequantized before it, its result is quantized with its own scale
    behind it. Made for modules chosen by ``set_preserve_qat_mode``.
    """

    def __init__(self, ops: Sequence[QATOp], wiring: Wiring | None = None) -> None:
        super().__init__()
        self.members = nn.ModuleList(ops)
        self.name = ops[-1].name
        self.wiring = wiring
        self.eval()

    def forward(self, *operands: Any, **dynamic: Any) -> Any:
        """Run the operators on the real numbers of the operands."""
        wiring, given = (
            Wiring.around(operands, dynamic)
            if self.wiring is None
            else (self.wiring, [*operands, *dynamic.values()])
        )
        values = [v.dequantize() if isinstance(v, QTensor) else v for v in given]
        made: list[Any] = []
        for index, member in enumerate(self.members):
            args, kwargs = wiring.resolve(index, values, made)
            made.append(member(*args, **kwargs))
        grid = self._grid(given)
        return made[-1] if grid is None else QTensor.quantize(made[-1], *grid)

    def _grid(self, operands: Sequence[Any]) -> tuple[Any, Any] | None:
        """Scale and dtype of the result: its own, or those of the codes that it keeps."""
        last: Any = self.members[-1]
        if isinstance(last.activation_post_process, FakeQuantize):
            return last.activation_post_process.scale, last.activation_post_process.dtype
        first = next((value for value in operands if isinstance(value, QTensor)), None)
        if first is None or last.spec.rule is not Rule.INPUT_SCALE:
            return None
        return first.q_scale(), first.dtype

    def extra_repr(self) -> str:
        """Name in the model."""
        return f"name={self.name}, in QAT form"


def is_preserved(ops: Iterable[nn.Module]) -> bool:
    """Whether ``set_preserve_qat_mode`` chose one of them."""
    return any(getattr(op, PRESERVE, False) for op in ops)


def chosen_paths(model: nn.Module) -> list[str]:
    """Paths of the modules that are chosen; what lies inside of them is chosen with them."""
    return [path for path, module in model.named_modules() if getattr(module, PRESERVE, False)]


def choose(prepared: nn.Module, paths: Iterable[str]) -> None:
    """Choose the operators of a prepared model that stand for the modules at ``paths``."""
    starts = [path and f"{path}." for path in paths]
    for path, module in prepared.named_modules():
        if isinstance(module, QATOp) and any(f"{path}.".startswith(start) for start in starts):
            setattr(module, PRESERVE, True)


PRESERVE = "preserve_qat_mode"
"""Attribute of modules that ``set_preserve_qat_mode`` chose."""
