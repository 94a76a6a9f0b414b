"""The constants of an epilogue as the arrays that compiled kernels read."""

from __future__ import annotations

import numpy as np
import torch

from qtune.arith.rounding import Int64Array
from qtune.arith_fast.epilogue import Epilogue
from qtune.arith_fast.steps import DoubleStep
from qtune.dtype import qint32


class Constants:
    """Per-channel arrays filled up to ``size`` channels, and the clamp.

    ``correction``: what the kernel's own sums lack (the zero point of the held input).
    """

    def __init__(self, epilogue: Epilogue, correction: Int64Array, size: int) -> None:
        step = epilogue.step
        first = correction + (epilogue.bias.long().numpy() if step is None else 0)
        # Sums wrap at 32 bits on their way; where the whole sum fits, it is right in the end.
        wrapped = ((first + (1 << 31)) % (1 << 32) - (1 << 31)).astype(np.int32)
        self._bias = _filled(torch.from_numpy(wrapped), len(correction), size)
        self._factor, self._addend, self._limits = (torch.zeros(size, dtype=torch.float64),) * 3
        if isinstance(step, DoubleStep):
            self._factor = _filled(step.factor, len(correction), size)
            self._addend = _filled(step.addend, len(correction), size)
            top = step.high if step.low < 0 else step.high + 0.5
            self._limits = torch.tensor([step.low, top], dtype=torch.float64)
        self.near = isinstance(step, DoubleStep) and step.fits_int32
        self._operand = [torch.zeros(1, dtype=torch.float64)] * 2
        if epilogue.operand is not None:
            parts = (epilogue.operand.factor, epilogue.operand.half)
            self._operand = [_filled(part, len(correction), size) for part in parts]

    def addresses(self) -> list[int]:
        """Bias, factor, addend, limits."""
        return [t.data_ptr() for t in (self._bias, self._factor, self._addend, self._limits)]

    def operand_addresses(self) -> list[int]:
        """Factor and addend of the fused operand."""
        return [t.data_ptr() for t in self._operand]

    @staticmethod
    def fit(epilogue: Epilogue) -> bool:
        """Whether float64 and int32 hold all that happens, so that no clamp can count."""
        if epilogue.saturates or epilogue.wide:
            return False
        if epilogue.step is None:
            return epilogue.out is qint32 and epilogue.operand is None
        operand = epilogue.operand
        return isinstance(epilogue.step, DoubleStep) and (operand is None or operand.is_plain)


def _filled(values: torch.Tensor, channels: int, size: int) -> torch.Tensor:
    full = torch.zeros(size, dtype=values.dtype)
    full[:channels] = values
    return full
