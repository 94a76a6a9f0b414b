"""pixels: a picture as codes ``pixel - 128`` of a fixed scale; gray, RGB or YUV 4:4:4.

``Pixels(x; scale, zero)`` is the float form: ``(x - zero) * scale``, x uint8 with zero 128, or int8
(pixels that the caller has centred) with zero 0. Converted, int8 pixels are codes as they are, and
``QPixels`` centres uint8 ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from qtune.arith_fast.held import channels_last
from qtune.dtype import qint8
from qtune.errors import ConvertError
from qtune.ops.kernel import (
    Attrs,
    ConvertContext,
    FastKernel,
    FloatNode,
    HbirKernel,
    KernelNode,
    PlainValue,
    QValue,
    Value,
)
from qtune.ops.registry import register_kernel

CENTRE = 128
"""The pixel that becomes code 0."""

DOMAIN = "qtune"


def real_pixels(x: torch.Tensor, zero: int, scale: float) -> torch.Tensor:
    """``(x - zero) * scale`` in float32."""
    return (x.to(torch.float32) - zero) * torch.tensor(scale, dtype=torch.float32)


def plain_operand(node: FloatNode, index: int) -> Value:
    """The graph value of a picture, or a clear error."""
    operand = node.operands[index]
    if isinstance(operand, PlainValue):
        return operand.value
    raise ConvertError(
        f"{node.name}: {node.op_type} got {type(operand).__name__} where a picture of bytes was "
        "expected; insert the image operators on an input of the module"
    )


def centred(value: Value, scale: float) -> QValue:
    """A graph value of codes ``pixel - 128``."""
    return QValue(value, qint8, float(scale), qint8.qmin, qint8.qmax)


def _run(attrs: Attrs, x: torch.Tensor) -> torch.Tensor:
    return real_pixels(x, attrs["zero"], attrs["scale"])


def _convert(ctx: ConvertContext, node: FloatNode) -> QValue:
    value = plain_operand(node, 0)
    if node.attrs["zero"]:
        value = ctx.add("QPixels", [value], {}, domain=DOMAIN)
    codes = centred(value, node.attrs["scale"])
    track: Callable[[QValue], QValue] | None = getattr(ctx, "track", None)
    return codes if track is None else track(codes)


def _reference(attrs: Attrs, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return x.astype(np.int64) - CENTRE


def _fast(node: KernelNode) -> FastKernel:
    return channels_last  # a held code is code + 128, which is the pixel


register_kernel(HbirKernel("Pixels", DOMAIN, run_float=_run, convert=_convert))
register_kernel(HbirKernel("QPixels", DOMAIN, reference=_reference, fast=_fast))
