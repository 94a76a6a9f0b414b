"""Bilinear resize of a prepared model as the integer model does it (numerics.md section 4)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from qtune.arith.resize import bilinear_taps
from qtune.errors import ConvertError
from qtune.ops.kernel import (
    Attrs,
    Builder,
    ConvertContext,
    FloatConst,
    FloatNode,
    HbirKernel,
    LowerCall,
    QValue,
    Value,
)
from qtune.ops.movement.moving import carry
from qtune.ops.quant.codes import onnx_type
from qtune.ops.resize.integer import ONE, SHIFT

OP = "FakeResizeBilinear"
DOMAIN = "qtune"
_PARTS = ("y0", "y1", "wy", "x0", "x1", "wx")


def taps_of(shape: Any, out: tuple[int, int], align_corners: bool) -> list[np.ndarray[Any, Any]]:
    """The source indices and weights of rows and columns, as ``QResizeBilinear`` takes them."""
    axes = zip(shape[-2:], out, strict=True)
    return [part for axis in axes for part in bilinear_taps(*axis, align_corners)]


def resize_exactly(x: torch.Tensor, scale: float, taps: list[torch.Tensor]) -> torch.Tensor:
    """The codes of ``x`` [N, C, H, W] blended with weights of 256, rounded half up once, as floats.

    float32 holds every sum: 8 bits of a code and 16 of two weights.
    """
    step = torch.tensor(scale, dtype=torch.float32, device=x.device)
    codes = torch.floor(x.float() / step + 0.5)
    y0, y1, wy, x0, x1, wx = (part.to(x.device) for part in taps)
    wy, wx = wy.float().view(-1, 1), wx.float()
    down = codes.index_select(2, y0) * (ONE - wy) + codes.index_select(2, y1) * wy
    total = down.index_select(3, x0) * (ONE - wx) + down.index_select(3, x1) * wx
    return torch.floor(total * 2.0**-SHIFT + 0.5).mul_(step).to(x.dtype)


def lower_exactly(b: Builder, call: LowerCall, scale: float, taps: list[Any]) -> Value:
    """Emit FakeResizeBilinear."""
    parts = [b.constant(part, name) for part, name in zip(taps, _PARTS, strict=True)]
    step = b.constant(np.array(scale, dtype=np.float32), "scale")
    return b.add(OP, [call.operands[0], step, *parts], {}, domain=DOMAIN)


def _run_float(attrs: Attrs, x: torch.Tensor, scale: torch.Tensor, *taps: Any) -> torch.Tensor:
    return resize_exactly(x, float(scale), list(taps))


def _convert(ctx: ConvertContext, node: FloatNode) -> Any:
    x, scale, *parts = node.operands
    if not all(isinstance(part, FloatConst) for part in (scale, *parts)):
        raise ConvertError(f"{node.name}: {node.op_type} needs its positions as constants")
    taps = [ctx.constant(part.data, k) for part, k in zip(parts, _PARTS, strict=True)]  # type: ignore[union-attr]
    if not isinstance(x, QValue):
        step = ctx.constant(scale.data, "scale")  # type: ignore[union-attr]
        return carry(ctx, node, lambda v: ctx.add(OP, [v, step, *taps], {}, domain=DOMAIN))
    x = ctx.requantize(x, float(scale.data.reshape(())), x.dtype)  # type: ignore[union-attr]
    value = ctx.add("QResizeBilinear", [x.value, *taps], {"to": onnx_type(x.dtype)}, domain=DOMAIN)
    return QValue(value, x.dtype, x.scale, x.code_min, x.code_max)


EXACT_RESIZE = HbirKernel(OP, DOMAIN, run_float=_run_float, convert=_convert)
"""The float form of resize from consistency level 1 on."""
