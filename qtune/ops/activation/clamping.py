"""What relu, relu6, clamp and hardtanh share: codes clamped at the codes of the bounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from qtune.arith_fast.held import held_dtype, offset
from qtune.errors import ConvertError
from qtune.ops.elementwise.fast import clipped
from qtune.ops.elementwise.operands import codes, copy_node, is_plain
from qtune.ops.elementwise.sign_rule import bounded
from qtune.ops.kernel import (
    Attrs,
    Builder,
    ConvertContext,
    FastKernel,
    FloatConst,
    FloatNode,
    HbirKernel,
    KernelNode,
    Operand,
    Pending,
    QValue,
    Value,
)
from qtune.ops.quant.codes import code_bounds, output_dtype
from qtune.ops.registry import register_kernel

Array = np.ndarray[Any, Any]


def convert_clamp(
    ctx: ConvertContext, node: FloatNode, low: float | None, high: float | None
) -> Operand:
    """Clamp the first operand to [low, high]: in the operator before it, else on its codes."""
    x = node.operands[0]
    if isinstance(x, Pending):
        fused = x.clamp(ctx, low, high)
        if fused is not None:
            return fused
    if is_plain(node):
        return copy_node(ctx, node)
    q = codes(ctx, node, 0)
    _report_saturated(ctx, node, q, low, high)
    return bounded(ctx, "QClip", q, *code_bounds(low, high, q.scale, q.dtype))


def _report_saturated(
    ctx: ConvertContext, node: FloatNode, x: QValue, low: float | None, high: float | None
) -> None:
    """All results are one bound, which the prepared model has exactly; the grid ends before it."""
    grid = (x.dtype.qmin - 0.5) * x.scale, (x.dtype.qmax + 0.5) * x.scale
    beyond = [(low, x.dtype.qmax)] if low is not None and low > grid[1] else []
    beyond += [(high, x.dtype.qmin)] if high is not None and high < grid[0] else []
    for bound, end in beyond[:1]:
        ctx.report(
            "clamp_saturated",
            f"{node.name}: the bound {bound:g} lies outside the range of its input's grid and "
            f"becomes {end * x.scale:g}. Clamp within that range",
            value=bound,
        )


def bound_of(node: FloatNode, index: int) -> float | None:
    """A bound of a Clip: a constant number, or ``None`` where it is absent."""
    operand = node.operands[index] if len(node.operands) > index else None
    if operand is None:
        return None
    if isinstance(operand, FloatConst) and operand.data.size == 1:
        return float(operand.data.reshape(()))
    raise ConvertError(
        f"{node.name}: the bounds of {node.op_type} must be constant numbers here. Use maximum and "
        "minimum for bounds that are tensors"
    )


def lower_clip(b: Builder, x: Value, low: float | None, high: float | None) -> Value:
    """Emit Clip; an absent bound stays absent."""
    bounds = [None if v is None else b.constant(np.array(v, dtype=np.float32)) for v in (low, high)]
    return b.add("Clip", [x, *bounds])


def _reference(attrs: Attrs, x: Array) -> Array:
    return clipped(attrs, x)


def _fast(node: KernelNode) -> FastKernel:
    dtype = output_dtype(node)
    zero, out = offset(dtype), held_dtype(dtype)
    low, high = node.attrs["lo"] + zero, node.attrs["hi"] + zero

    def kernel(x: torch.Tensor) -> torch.Tensor:
        return x.clamp(low, high).to(out)

    return kernel


register_kernel(HbirKernel("QClip", "qtune", reference=_reference, fast=_fast))
