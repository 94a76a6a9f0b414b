"""What any and all share: masks reduced to masks, no scale."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from qtune.errors import ExportError
from qtune.ops.elementwise import limits
from qtune.ops.elementwise.binding import input_elements
from qtune.ops.elementwise.operands import copy_node, is_plain, mask
from qtune.ops.kernel import (
    Attrs,
    Builder,
    ConvertContext,
    FastKernel,
    FloatNode,
    HbirKernel,
    KernelNode,
    LowerCall,
    Operand,
    PlainValue,
)
from qtune.ops.reduce.reducing import axes_of, bind_reduction, sample_reduction
from qtune.ops.spec import Bound, FunctionTarget, MethodTarget, OpSpec, Rule

Array = np.ndarray[Any, Any]


def truth(name: str, op_type: str, function: Callable[..., torch.Tensor], doc: str) -> OpSpec:
    """``torch.any`` or ``torch.all``; ``op_type`` is its operator of the domain."""
    numpy_function: Callable[..., Array] = getattr(np, name)

    def bind(input: Any, dim: Any = None, keepdim: bool = False) -> Bound:
        return bind_reduction(name, input, dim, keepdim)

    def float_kernel(input: torch.Tensor, *, dim: Any = None, keepdim: bool = False) -> Any:
        if dim is None and not keepdim:
            return function(input)
        return function(input, tuple(range(input.dim())) if dim is None else dim, keepdim)

    def lower(b: Builder, call: LowerCall) -> Any:
        dtype = call.input_dtypes[0] if call.input_dtypes else "bool"
        if dtype != "bool":
            raise ExportError(
                f"{call.name}: {name} takes a bool mask, got {dtype}. Compare with 0 first, or "
                "keep it outside the exported part"
            )
        axes = axes_of(call.attrs["dim"], len(call.input_shapes[0] or ()))
        attrs = {"axes": list(axes), "keepdims": int(call.attrs["keepdim"])}
        if not axes:
            return b.add("Identity", [call.operands[0]])
        return b.add(op_type, [call.operands[0]], attrs, domain="qtune")

    def convert(ctx: ConvertContext, node: FloatNode) -> Operand:
        if is_plain(node):
            return copy_node(ctx, node, domain="qtune", masks=True)
        value = mask(ctx, node, 0)
        return PlainValue(ctx.add(op_type, [value], node.attrs, domain="qtune"))

    def run_float(attrs: Attrs, x: torch.Tensor) -> torch.Tensor:
        return function(x, tuple(attrs["axes"]), bool(attrs["keepdims"]))

    def reference(attrs: Attrs, x: Array) -> Array:
        axes = tuple(attrs["axes"])
        return np.asarray(numpy_function(x, axis=axes, keepdims=bool(attrs["keepdims"])))

    def fast(node: KernelNode) -> FastKernel:
        return lambda x: run_float(node.attrs, x)

    return OpSpec(
        name=name,
        family="reduce",
        rule=Rule.NO_SCALE,
        roles=("mask",),
        targets=(FunctionTarget(function, bind), MethodTarget(name, bind)),
        float_kernel=float_kernel,
        lower=lower,
        kernels=(
            HbirKernel(
                op_type,
                "qtune",
                run_float=run_float,
                convert=convert,
                reference=reference,
                fast=fast,
            ),
        ),
        march=limits.NOT_BERNOULLI,
        flops=input_elements,
        sample=sample_reduction,
        doc=doc,
    )
