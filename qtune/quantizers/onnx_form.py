"""A fake-quantize as operators of an ONNX file that torch's TorchScript exporter writes.

* qint8 with one scale: QuantizeLinear and DequantizeLinear. They round ties to even, a
  fake-quantize rounds them up (numerics.md section 1), so that a value on a tie (the negative end
  of the calibrated range is one) may be one scale off;
* else Div, Add, Floor, Clip and Mul, which are exact.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

INT8 = (-128.0, 127.0)
"""The codes that QuantizeLinear and DequantizeLinear have in every opset."""


def onnx_form(x: Tensor, scale: Tensor, limits: tuple[float, float], axis: int) -> Tensor:
    """The fake-quantized ``x``, written as above. ``scale``: float32 [C]; ``axis``: of channels.

    The operators are float32's; the result has the dtype of ``x``.
    """
    values = _as(x, torch.float32)
    if limits == INT8 and scale.numel() == 1:
        result: Tensor = _QuantizeLinear.apply(values, scale.reshape(()))  # type: ignore[no-untyped-call]
        return _as(result, x.dtype)
    if scale.numel() > 1:
        scale = scale.reshape([-1 if d == axis % x.dim() else 1 for d in range(x.dim())])
    return _as(torch.floor(values / scale + 0.5).clamp(*limits) * scale, x.dtype)


def _as(x: Tensor, dtype: torch.dtype) -> Tensor:
    """``x`` as ``dtype``, without a Cast in the file where it has it."""
    return x if x.dtype == dtype else x.to(dtype)


class _QuantizeLinear(torch.autograd.Function):
    """QuantizeLinear and DequantizeLinear on int8, one scale."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor) -> Tensor:
        return torch.round(x / scale).clamp(*INT8) * scale

    @staticmethod
    def symbolic(g: Any, x: Any, scale: Any) -> Any:
        zero = g.op("Constant", value_t=torch.zeros((), dtype=torch.int8))
        codes = g.op("QuantizeLinear", x, scale, zero)
        return g.op("DequantizeLinear", codes, scale, zero)
