"""The modules that mark where a model enters and leaves the quantized region."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from qtune.errors import ArgumentError


class QuantStub(nn.Module):
    """Where float data become codes. The identity until ``prepare``.

    ``scale``: a fixed scale of the output, which calibration then leaves alone; ``None`` observes.
    ``zero_point``: 0 or ``None``; grids here have none. ``qconfig``: the stub's own qconfig, like
    setting ``module.qconfig``.
    """

    def __init__(
        self, scale: float | None = None, zero_point: int | None = None, qconfig: Any = None
    ) -> None:
        super().__init__()
        if scale is not None and not (float(scale) > 0.0 and float(scale) != float("inf")):
            raise ArgumentError(f"QuantStub: scale must be a positive number, got {scale!r}")
        if zero_point is not None and int(zero_point) != 0:
            raise ArgumentError(
                f"QuantStub: zero_point must be 0, got {zero_point!r}; the BPU's grids are "
                "symmetric. Shift the data instead"
            )
        self.scale = None if scale is None else float(scale)
        self.zero_point = 0
        if qconfig is not None:
            self.qconfig = qconfig

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return ``x``."""
        return x

    def extra_repr(self) -> str:
        """The fixed scale, if there is one."""
        return "" if self.scale is None else f"scale={self.scale}"


class DeQuantStub(nn.Module):
    """Where codes become float data again. The identity until ``prepare``.

    ``qconfig`` is accepted for scripts written for other toolchains' stubs and kept as attribute.
    """

    def __init__(self, qconfig: Any = None) -> None:
        super().__init__()
        if qconfig is not None:
            self.qconfig = qconfig

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return ``x``."""
        return x


def torch_stubs() -> tuple[tuple[type, ...], tuple[type, ...]]:
    """torch's own (QuantStub, DeQuantStub) classes, empty where this torch has none."""
    try:
        from torch.ao.quantization.stubs import DeQuantStub as TorchDeQuantStub
        from torch.ao.quantization.stubs import QuantStub as TorchQuantStub
    except ImportError:
        return (), ()
    return (TorchQuantStub,), (TorchDeQuantStub,)
