"""A look-up table module beside the function that it stands for."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from qtune.arith.quantize import quantize
from qtune.dtype import qint8, quant_dtype
from qtune.testing.fuzzing.line import calibrated, converted, output_steps, quietly


class _Holder(nn.Module):
    """The table under the name ``op``, so that rules for ``op`` reach it."""

    def __init__(self, op: nn.Module) -> None:
        super().__init__()
        self.op = op

    def forward(self, x: Tensor) -> Any:
        return self.op(x)


@dataclass(frozen=True, slots=True, eq=False)
class TableCall:
    """A table module (``SegmentLUT``, an activation) on the real numbers ``x``, float32.

    The table is made for the range of ``x``, as calibration would; the module stays as it is.
    """

    table: nn.Module
    x: Tensor
    dtype: str = "qint8"
    march: str = "nash-e"

    @property
    def bound(self) -> float:
        """Documented steps between table and function: 0 for int8, 1 for int16 (numerics.md 3)."""
        return 0.0 if quant_dtype(self.dtype) == qint8 else 1.0

    def run(self, function: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor, float]:
        """What the table gives, what ``function`` gives, and the step, in real numbers.

        ``function`` gets the input's grid values as float64 and is rounded once.
        """
        grid = quant_dtype(self.dtype)
        with quietly(self.march):
            prepared = calibrated(_Holder(copy.deepcopy(self.table)).eval(), (self.x,), grid)
            module = converted(prepared, (self.x,))
            (step,) = output_steps(prepared)
            (scale,) = (float(q.scale) for q in _inputs(prepared))
        (name,) = (item.name for item in module[0].inputs)
        (got,) = module[0].run({name: self.x}).values()
        codes = quantize(self.x.numpy(), scale, grid)
        exact = function(torch.from_numpy(codes * float(np.float32(scale)))).numpy()
        expected = quantize(np.asarray(exact, dtype=np.float64), step or 1.0, grid)
        return got, torch.from_numpy(expected * (step or 1.0)), step or 1.0


def _inputs(prepared: Any) -> list[Any]:
    from qtune.nn.qat import iter_ops

    return [op.activation_post_process for op in iter_ops(prepared) if op.spec.name == "quant_stub"]
