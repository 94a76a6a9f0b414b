"""affine_grid: the grid that an affine map makes, a constant base grid times theta."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import lcm
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from qtune.dtype import qint16
from qtune.errors import ConvertError
from qtune.ops.gemm.matmul import MatmulPending
from qtune.ops.kernel import (
    Attrs,
    Builder,
    ConvertContext,
    FloatConst,
    FloatNode,
    HbirKernel,
    LowerCall,
    QConst,
    QValue,
)
from qtune.ops.movement.moving import Moved, carry, initializer, int64, one_scale, operand_value
from qtune.ops.quant.codes import stored
from qtune.ops.registry import register
from qtune.ops.spec import Bound, FunctionTarget, MarchRule, OpSpec, Rule, Sample

_COARSE = 1 << 14
"""Steps of 1 in a base grid whose coordinates share no denominator of 15 bits."""


def _bind(theta: Any, size: Any, align_corners: Any = None) -> Bound:
    if isinstance(size, Sequence) and len(size) != 4:
        raise NotImplementedError(
            f"affine_grid of a size of {len(size)} dimensions; [N, C, H, W] is possible"
        )
    return Bound((theta,), {"size": tuple(size), "align_corners": bool(align_corners)})


def float_kernel(theta: torch.Tensor, *, size: Any, align_corners: bool) -> torch.Tensor:
    """``theta`` [N, 2, 3] gives [N, H, W, 2]: ``theta @ (x, y, 1)`` at every element."""
    return F.affine_grid(theta, [int(v) for v in size], align_corners)


def _lower(b: Builder, call: LowerCall) -> Any:
    size = b.constant(int64(call.attrs["size"]), "size")
    flag = {"align_corners": int(call.attrs["align_corners"])}
    return b.add("AffineGrid", [call.operands[0], size], flag)


def _run_float(attrs: Attrs, theta: torch.Tensor, size: torch.Tensor) -> torch.Tensor:
    full = [theta.shape[0], *size.tolist()[1:]]
    return F.affine_grid(theta, full, bool(attrs.get("align_corners", 0)))


def base_grid(height: int, width: int, align_corners: bool) -> tuple[np.ndarray[Any, Any], int]:
    """(codes int64 [H * W, 3] of (x, y, 1), steps of 1): exact if 15 bits hold the steps."""
    spans = [max(n - 1, 1) if align_corners else n for n in (width, height)]
    steps = lcm(*spans)
    exact = steps <= qint16.qmax
    steps = steps if exact else _COARSE
    x, y = (
        np.floor((2 * np.arange(n) + 1 - n) * steps / span + 0.5).astype(np.int64)
        for n, span in zip((width, height), spans, strict=True)
    )
    parts = [np.broadcast_to(x, (height, width)), np.broadcast_to(y[:, None], (height, width))]
    return np.stack([*parts, np.full((height, width), steps)], -1).reshape(-1, 3), steps


def _convert(ctx: ConvertContext, node: FloatNode) -> Any:
    theta, size = node.operands
    if isinstance(theta, QConst):
        one_scale(node, theta)
        theta = initializer(ctx, theta)
    if not isinstance(theta, QValue):
        rest = operand_value(ctx, node, size)
        return carry(ctx, node, lambda v: ctx.add("AffineGrid", [v, rest], dict(node.attrs)))
    if not isinstance(size, FloatConst):
        raise ConvertError(f"{node.name}: affine_grid of a size that the graph computes; fix it")
    height, width = (int(v) for v in size.data[2:])
    codes, steps = base_grid(height, width, bool(node.attrs.get("align_corners", 0)))
    base = QValue(ctx.constant(stored(codes, qint16), "base"), qint16, 1 / steps)
    turned = ctx.add("Transpose", [theta.value], {"perm": (0, 2, 1)})
    shape = ctx.constant(int64((-1, height, width, 2)), "shape")
    product = MatmulPending(node.name, base, replace(theta, value=turned))
    return Moved(product, lambda value: ctx.add("Reshape", [value, shape]))


def _flops(attrs: Attrs, inputs: Sequence[Any], output: Sequence[int]) -> int:
    """Three products for each coordinate."""
    return 3 * int(np.prod(output))


def _sample(rng: np.random.Generator) -> Sample:
    batch, *size = (int(v) for v in (rng.integers(1, 4), *rng.integers(2, 9, 2)))
    attrs = {"size": (batch, 1, *size), "align_corners": bool(rng.integers(2))}
    return Sample(((batch, 2, 3),), attrs)


register(
    OpSpec(
        name="affine_grid",
        family="resize",
        rule=Rule.OWN_SCALE,
        roles=("theta",),
        targets=(FunctionTarget(F.affine_grid, _bind),),
        float_kernel=float_kernel,
        lower=_lower,
        kernels=(HbirKernel("AffineGrid", run_float=_run_float, convert=_convert),),
        march=(MarchRule(("nash",)),),
        flops=_flops,
        sample=_sample,
        doc="the sampling grid of an affine map",
    )
)
