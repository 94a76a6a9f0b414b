"""What amax and amin share: the largest or smallest code, scale kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from qtune.arith_fast.held import channels_last
from qtune.ops.elementwise import limits
from qtune.ops.elementwise.binding import input_elements
from qtune.ops.elementwise.operands import codes, copy_node, is_plain
from qtune.ops.kernel import (
    Attrs,
    ConvertContext,
    FastKernel,
    FloatNode,
    HbirKernel,
    KernelNode,
    Operand,
)
from qtune.ops.quant.codes import onnx_type
from qtune.ops.reduce.reducing import (
    bind_reduction,
    constant_axes,
    lower_as,
    run_as,
    sample_reduction,
)
from qtune.ops.spec import Bound, FunctionTarget, MethodTarget, OpSpec, Rule

Array = np.ndarray[Any, Any]


def extremum(
    name: str,
    onnx_op: str,
    function: Callable[..., torch.Tensor],
    numpy_function: Callable[..., Array],
    doc: str,
) -> OpSpec:
    """The operator ``function(input, dim, keepdim)``."""
    integer_op = f"Q{onnx_op}"

    def bind(input: Any, dim: Any = None, keepdim: bool = False) -> Bound:
        return bind_reduction(name, input, dim, keepdim)

    def float_kernel(input: torch.Tensor, *, dim: Any = None, keepdim: bool = False) -> Any:
        return function(input, () if dim is None else dim, keepdim)

    def convert(ctx: ConvertContext, node: FloatNode) -> Operand:
        if is_plain(node):
            return copy_node(ctx, node)
        x = codes(ctx, node, 0)
        attrs = {
            "axes": constant_axes(node),
            "keepdims": node.attrs.get("keepdims", 1),
            "to": onnx_type(x.dtype),
        }
        return replace(x, value=ctx.add(integer_op, [x.value], attrs, domain="qtune"))

    def reference(attrs: Attrs, x: Array) -> Array:
        return numpy_function(x, axis=tuple(attrs["axes"]), keepdims=bool(attrs["keepdims"]))

    def fast(node: KernelNode) -> FastKernel:
        axes, keepdims = tuple(node.attrs["axes"]), bool(node.attrs["keepdims"])
        return lambda x: channels_last(function(x, axes, keepdims))

    return OpSpec(
        name=name,
        family="reduce",
        rule=Rule.INPUT_SCALE,
        roles=("input",),
        targets=(FunctionTarget(function, bind), MethodTarget(name, bind)),
        float_kernel=float_kernel,
        lower=lower_as(onnx_op),
        kernels=(
            HbirKernel(onnx_op, run_float=run_as(function), convert=convert),
            HbirKernel(integer_op, "qtune", reference=reference, fast=fast),
        ),
        march=limits.EXTREMUM,
        flops=input_elements,
        sample=sample_reduction,
        doc=doc,
    )
