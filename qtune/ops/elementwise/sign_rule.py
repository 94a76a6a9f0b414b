"""What neg and abs share: the codes change, their scale stays, qmin saturates to qmax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from qtune.arith_fast.held import held_dtype, offset
from qtune.ops.elementwise.fast import clipped
from qtune.ops.elementwise.operands import codes, copy_node, is_plain
from qtune.ops.kernel import (
    Attrs,
    ConvertContext,
    FastKernel,
    FloatNode,
    HbirKernel,
    KernelNode,
    Operand,
    QValue,
)
from qtune.ops.quant.codes import onnx_type, output_dtype

Array = np.ndarray[Any, Any]


def bounded(ctx: ConvertContext, op_type: str, x: QValue, lo: int, hi: int) -> QValue:
    """Emit ``op_type`` with result codes between lo and hi; dtype and scale of ``x`` stay."""
    attrs = {"lo": lo, "hi": hi, "to": onnx_type(x.dtype)}
    return QValue(ctx.add(op_type, [x.value], attrs, domain="qtune"), x.dtype, x.scale, lo, hi)


def saturating_kernels(
    onnx_op: str,
    integer_op: str,
    function: Callable[[torch.Tensor], torch.Tensor],
    on_codes: Callable[[Array], Array],
    *,
    non_negative: bool,
) -> tuple[HbirKernel, HbirKernel]:
    """The float and the integer kernel of ``function``, which is ``on_codes`` in NumPy."""

    def convert(ctx: ConvertContext, node: FloatNode) -> Operand:
        if is_plain(node):
            return copy_node(ctx, node)
        x = codes(ctx, node, 0)
        lo = 0 if non_negative else x.dtype.qmin
        return bounded(ctx, integer_op, x, lo, x.dtype.qmax)

    def reference(attrs: Attrs, x: Array) -> Array:
        return clipped(attrs, on_codes(x))

    def fast(node: KernelNode) -> FastKernel:
        zero, out = offset(output_dtype(node)), held_dtype(output_dtype(node))
        lo, hi = node.attrs["lo"], node.attrs["hi"]

        def kernel(x: torch.Tensor) -> torch.Tensor:
            return function(x.to(torch.int32).sub_(zero)).clamp_(lo, hi).add_(zero).to(out)

        return kernel

    return (
        HbirKernel(onnx_op, run_float=lambda attrs, x: function(x), convert=convert),
        HbirKernel(integer_op, "qtune", reference=reference, fast=fast),
    )
