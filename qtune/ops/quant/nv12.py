"""nv12: a luma plane and a half-size chroma plane as codes ``pixel - 128`` of YUV 4:4:4.

``Nv12(y, uv; scale)`` is the float form, ``QNv12(y, uv)`` the integer one: y uint8 [N, H, W, 1],
uv uint8 [N, H / 2, W / 2, 2], result [N, H, W, 3]. A chroma pair serves its four pixels.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from qtune.arith_fast.held import channels_last
from qtune.ops.kernel import (
    Attrs,
    ConvertContext,
    FastKernel,
    FloatNode,
    HbirKernel,
    KernelNode,
    QValue,
)
from qtune.ops.quant.pixels import CENTRE, DOMAIN, centred, plain_operand, real_pixels
from qtune.ops.registry import register_kernel

Array = np.ndarray[Any, Any]


def _planes(y: torch.Tensor, uv: torch.Tensor) -> torch.Tensor:
    wide = uv.repeat_interleave(2, dim=1).repeat_interleave(2, dim=2)
    return torch.cat([y, wide], dim=3)


def _run(attrs: Attrs, y: torch.Tensor, uv: torch.Tensor) -> torch.Tensor:
    return real_pixels(_planes(y, uv), CENTRE, attrs["scale"])


def _convert(ctx: ConvertContext, node: FloatNode) -> QValue:
    planes = [plain_operand(node, index) for index in (0, 1)]
    return centred(ctx.add("QNv12", planes, {}, domain=DOMAIN), node.attrs["scale"])


def _reference(attrs: Attrs, y: Array, uv: Array) -> Array:
    chroma = uv.repeat(2, axis=1).repeat(2, axis=2)
    return np.concatenate([y, chroma], axis=3).astype(np.int64) - CENTRE


def _fast(node: KernelNode) -> FastKernel:
    return lambda y, uv: channels_last(_planes(y, uv))  # held codes are the pixels


register_kernel(HbirKernel("Nv12", DOMAIN, run_float=_run, convert=_convert))
register_kernel(HbirKernel("QNv12", DOMAIN, reference=_reference, fast=_fast))
