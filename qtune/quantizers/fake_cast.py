"""``FakeCast``: marks a value that the march holds in float16 (numerics.md section 7)."""

from __future__ import annotations

import torch
from torch import nn

from qtune.dtype import FloatDType, float16, is_float16
from qtune.errors import ArgumentError
from qtune.quantizers.constructor import Constructor
from qtune.quantizers.state import FakeQuantState
from qtune.quantizers.uncompiled import runs_eagerly


class FakeCast(nn.Module):
    """``x.half()`` brought back to the dtype of ``x``: what a float16 register keeps of it.

    ``dtype``: float16, by our own name, torch's, or as text. ``name``: how reports call it. There
    is no scale and nothing to calibrate. ``state`` as of a fake-quantize: QAT and VALIDATION cast,
    CALIBRATION and ``_FLOAT`` pass the value on. Rounding is IEEE's (ties to even); beyond 65504
    the result is infinite. The gradient is 1 where the result is finite, else 0.
    """

    def __init__(self, dtype: object = float16, *, name: str = "") -> None:
        super().__init__()
        if not is_float16(dtype):
            raise ArgumentError(f"FakeCast: dtype must be float16, got {dtype!r}")
        self.dtype: FloatDType = float16
        self.name = name
        self.state = FakeQuantState.QAT

    @classmethod
    def with_args(cls, **kwargs: object) -> Constructor:
        """This class with some arguments, to be completed and called later."""
        return Constructor(cls, kwargs)

    @runs_eagerly
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Round ``x`` (floating, any shape) to float16; the result has its dtype."""
        if not isinstance(x, torch.Tensor) or not x.is_floating_point():
            got = x.dtype if isinstance(x, torch.Tensor) else type(x).__name__
            raise ArgumentError(
                f"{self.name or 'FakeCast'}: expected a floating torch tensor but got {got}; "
                "convert it before the call, nothing is converted silently"
            )
        if self.state in (FakeQuantState.CALIBRATION, FakeQuantState._FLOAT):
            return x
        held = x.detach().half().to(x.dtype)
        if not x.requires_grad:
            return held
        passed = torch.where(held.isfinite(), x, torch.zeros_like(x))
        return held + (passed - passed.detach())

    def extra_repr(self) -> str:
        """The dtype and whether it casts now."""
        return f"dtype={self.dtype}, state={self.state.value}"
