"""cumsum: exact running sum of the codes, one requantize each to a scale of its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from qtune.arith.requantize import rescale
from qtune.arith_fast.held import channels_last, offset
from qtune.dtype import QuantDType
from qtune.errors import ConvertError
from qtune.ops.elementwise.binding import input_elements
from qtune.ops.elementwise.fast import clipped, number, requantizer
from qtune.ops.elementwise.operands import Deferred, codes, copy_node, is_plain
from qtune.ops.elementwise.scaling import integers, single
from qtune.ops.kernel import (
    Attrs,
    Builder,
    ConvertContext,
    FastKernel,
    FloatConst,
    FloatNode,
    HbirKernel,
    KernelNode,
    LowerCall,
    Operand,
    Value,
)
from qtune.ops.quant.codes import input_dtype
from qtune.ops.reduce.reducing import refuse_dtype
from qtune.ops.registry import register
from qtune.ops.spec import (
    Bound,
    FunctionTarget,
    MarchRule,
    MethodTarget,
    OpSpec,
    Rule,
    Sample,
)

Array = np.ndarray[Any, Any]

MAX_AXIS = 8192
"""Longest axis on nash (toolchain_facts 7.1); int8 sums of that many codes stay in int32."""


def _bind(input: Any, dim: Any, *, dtype: Any = None) -> Bound:
    refuse_dtype("cumsum", input, dtype)
    return Bound((input,), {"dim": int(dim)})


def _cumsum(input: torch.Tensor, *, dim: int) -> torch.Tensor:
    return torch.cumsum(input, dim)


def _lower(b: Builder, call: LowerCall) -> Any:
    rank = len(call.input_shapes[0] or ())
    if rank == 0:
        return b.add("Identity", [call.operands[0]])
    axis = call.attrs["dim"] % rank
    return b.add("CumSum", [call.operands[0], b.constant(np.array(axis), "axis")])


def _run_float(attrs: Attrs, x: torch.Tensor, axis: torch.Tensor) -> torch.Tensor:
    dim = int(axis)
    if attrs.get("reverse", 0):
        x = x.flip(dim)
    total = torch.cumsum(x, dim)
    if attrs.get("exclusive", 0):
        total = total - x
    return total.flip(dim) if attrs.get("reverse", 0) else total


def _convert(ctx: ConvertContext, node: FloatNode) -> Operand:
    if is_plain(node):
        return copy_node(ctx, node)
    x, axis = codes(ctx, node, 0), node.operands[1]
    if not isinstance(axis, FloatConst) or any(node.attrs.get(k) for k in ("reverse", "exclusive")):
        raise ConvertError(
            f"{node.name}: CumSum has an integer rule for a constant axis, front to back and with "
            "the element itself. Flip the input, or subtract it from the result"
        )
    shape = node.input_shapes[0] or (1,)
    dim = int(axis.data.reshape(())) % len(shape)
    largest = -x.dtype.qmin * shape[dim]

    def emit(ctx: ConvertContext, scale: float, dtype: QuantDType, attrs: dict[str, int]) -> Value:
        shift = single(ctx, x.scale / scale, largest.bit_length())
        constants = integers(ctx, m=shift.m[0], n=shift.n)
        return ctx.add("QCumSum", [x.value, *constants], {"axis": dim, **attrs}, domain="qtune")

    return Deferred(emit)


def _reference(attrs: Attrs, x: Array, m: Array, n: Array) -> Array:
    return clipped(attrs, rescale(np.cumsum(x, axis=attrs["axis"]), m, n))


def _fast(node: KernelNode) -> FastKernel:
    axis, dtype = int(node.attrs["axis"]), input_dtype(node, 0)
    m, n, zero = number(node, 1), number(node, 2), offset(dtype)

    def kernel(x: torch.Tensor) -> torch.Tensor:
        total = torch.cumsum(x.to(torch.int32).sub_(zero), axis, dtype=torch.int64)
        step = requantizer(node, m, n, bound=-dtype.qmin * max(x.shape[axis], 1))
        return channels_last(step(total))

    return kernel


def _check(attrs: Attrs, inputs: Any, output: Any) -> str | None:
    shape = inputs[0] or (1,)
    length = shape[int(attrs["dim"]) % len(shape)]
    return f"the axis has at most {MAX_AXIS} elements, got {length}" if length > MAX_AXIS else None


def _sample(rng: np.random.Generator) -> Sample:
    shape = tuple(int(v) for v in rng.integers(1, 7, 3))
    return Sample((shape,), {"dim": int(rng.integers(-3, 3))})


register(
    OpSpec(
        name="cumsum",
        family="reduce",
        rule=Rule.OWN_SCALE,
        roles=("input",),
        targets=(
            FunctionTarget(torch.cumsum, _bind),
            MethodTarget("cumsum", _bind),
            MethodTarget("cumsum_", _bind),
        ),
        float_kernel=_cumsum,
        lower=_lower,
        kernels=(
            HbirKernel("CumSum", run_float=_run_float, convert=_convert),
            HbirKernel("QCumSum", "qtune", reference=_reference, fast=_fast),
        ),
        march=(
            MarchRule(("bayes",), ("qint8",), check=_check),
            MarchRule(("nash",), ("qint8",), ("qint8",), _check),
        ),
        flops=input_elements,
        sample=_sample,
        doc="running sum along a dimension",
    )
)
