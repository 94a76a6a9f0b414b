"""What the reductions share: dimensions, their lowering, and the sum of codes (numerics.md 3)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from qtune.arith.requantize import TIE_BITS, raised, rescale
from qtune.arith_fast.held import channels_last, offset
from qtune.dtype import QuantDType
from qtune.errors import ConvertError, ExportError
from qtune.ops.elementwise.binding import refuse
from qtune.ops.elementwise.fast import clipped, number, requantizer
from qtune.ops.elementwise.operands import Deferred, codes, copy_node, is_plain
from qtune.ops.elementwise.scaling import CommonShift, integers, single
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
from qtune.ops.quant.astype import emit_astype
from qtune.ops.quant.casting import dtype_of
from qtune.ops.quant.codes import input_dtype
from qtune.ops.quant.precision import average_multipliers
from qtune.ops.spec import Bound, Sample

Array = np.ndarray[Any, Any]


def bind_reduction(
    operator: str, input: Any, dim: Any = None, keepdim: bool = False, dtype: Any = None
) -> Bound:
    """``f(input, dim, keepdim)``; ``dim`` becomes a tuple, ``None`` means all dimensions."""
    refuse_dtype(operator, input, dtype)
    if isinstance(dim, int):
        dim = (dim,)
    dims = tuple(dim) if dim is not None and len(dim) else None
    return Bound((input,), {"dim": dims, "keepdim": bool(keepdim)})


def refuse_dtype(operator: str, input: Any, dtype: Any) -> None:
    """Raise for a ``dtype`` that differs from the input's."""
    if dtype is not None and dtype != dtype_of(input):
        refuse(operator, dtype=dtype)


def axes_of(dim: Sequence[int] | None, rank: int) -> tuple[int, ...]:
    """Dimensions counted from the front, in order; all of them for ``None``."""
    if dim is None:
        return tuple(range(rank))
    return tuple(sorted(int(d) % max(rank, 1) for d in dim))


def lower_as(onnx_op: str) -> Callable[[Builder, LowerCall], Any]:
    """A lowering to an ONNX reduction with its axes as an initializer."""

    def lower(b: Builder, call: LowerCall) -> Any:
        axes = axes_of(call.attrs["dim"], len(call.input_shapes[0] or ()))
        keepdims = {"keepdims": int(call.attrs["keepdim"])}
        x = call.operands[0]
        if onnx_op == "ReduceSum" and call.input_dtypes and call.input_dtypes[0] == "bool":
            x = emit_astype(b, x, torch.int64)  # torch counts a mask in int64
        else:
            _check_element(call)
        if not axes:
            return b.add("Identity", [x])
        return b.add(onnx_op, [x, b.constant(np.array(axes), "axes")], keepdims)

    return lower


def _check_element(call: LowerCall) -> None:
    dtype = call.input_dtypes[0] if call.input_dtypes else "float32"
    if dtype not in ("float32", "int64"):
        raise ExportError(
            f"{call.name}: the reduction of a {dtype} tensor has another dtype in torch than in "
            "ONNX; convert it with .float() or .long() first"
        )


def run_as(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """The float kernel of an ONNX reduction by torch's own function."""

    def run_float(attrs: Attrs, x: torch.Tensor, axes: torch.Tensor) -> torch.Tensor:
        return function(x, tuple(axes.tolist()), bool(attrs.get("keepdims", 1)))

    return run_float


def constant_axes(node: FloatNode) -> tuple[int, ...]:
    """The axes operand of a float reduction."""
    operand = node.operands[1] if len(node.operands) > 1 else None
    if isinstance(operand, FloatConst):
        rank = len(node.input_shapes[0] or ())
        return axes_of(operand.data.reshape(-1).tolist(), rank)
    raise ConvertError(f"{node.name}: {node.op_type} needs its axes as a constant of the file")


def convert_sum(ctx: ConvertContext, node: FloatNode, *, mean: bool) -> Operand:
    """Exact sum of codes, one requantize with ``s_x / (count * s_y)``; count is 1 for sum."""
    if is_plain(node):
        return copy_node(ctx, node)
    x, axes = codes(ctx, node, 0), constant_axes(node)
    shape = node.input_shapes[0] or ()
    count = math.prod(shape[axis] for axis in axes) if mean else 1
    keepdims = node.attrs.get("keepdims", 1)

    def emit(ctx: ConvertContext, scale: float, dtype: QuantDType, attrs: dict[str, int]) -> Value:
        largest = -x.dtype.qmin * math.prod(shape[axis] for axis in axes)
        m, n, is_raised = average_multipliers(ctx, x.scale / scale, count, largest)
        shift = CommonShift((int(m),), int(n))
        if not is_raised:
            shift = single(ctx, x.scale / (count * scale), largest.bit_length())
        constants = integers(ctx, m=shift.m[0], n=shift.n)
        reduction = {"axes": axes, "keepdims": keepdims, **attrs}
        op_type = "QReduceSumUp" if is_raised else "QReduceSum"
        return ctx.add(op_type, [x.value, *constants], reduction, domain="qtune")

    return Deferred(emit)


def _reference_sum(attrs: Attrs, x: Array, m: Array, n: Array) -> Array:
    total = x.sum(axis=tuple(attrs["axes"]), keepdims=bool(attrs["keepdims"]))
    return clipped(attrs, rescale(total, m, n))


def _reference_raised(attrs: Attrs, x: Array, m: Array, n: Array) -> Array:
    total = x.sum(axis=tuple(attrs["axes"]), keepdims=bool(attrs["keepdims"]))
    return clipped(attrs, rescale(raised(total), m, n))


def _fast_sum(node: KernelNode) -> FastKernel:
    axes, keepdims = tuple(node.attrs["axes"]), bool(node.attrs["keepdims"])
    m, n, dtype = number(node, 1), number(node, 2), input_dtype(node, 0)
    zero, largest = offset(dtype), dtype.qmax + offset(dtype) + 1
    scale, extra = (1 << TIE_BITS, 1) if node.op_type == "QReduceSumUp" else (1, 0)

    def kernel(x: torch.Tensor) -> torch.Tensor:
        count = scale * math.prod(x.shape[axis] for axis in axes)
        wide = torch.int32 if count * largest < 1 << 31 else torch.int64
        total = x.sum(dim=axes, keepdim=keepdims, dtype=wide)
        step = requantizer(node, m, n, extra, bound=count * largest, zero=count * zero)
        return channels_last(step(total.mul_(scale)))

    return kernel


SUM_KERNEL = HbirKernel("QReduceSum", "qtune", reference=_reference_sum, fast=_fast_sum)
"""The integer kernel of mean and sum."""

RAISED_KERNEL = HbirKernel("QReduceSumUp", "qtune", reference=_reference_raised, fast=_fast_sum)
"""That of ``64 * sum + 1``: ties of a mean go up (``average_multipliers``)."""


def sample_reduction(rng: np.random.Generator) -> Sample:
    """A map reduced along one, two or all dimensions."""
    shape = tuple(int(v) for v in rng.integers(1, 7, 4))
    dims = ((1,), (2, 3), (-1,), (0, 2), None)
    return Sample(
        (shape,), {"dim": dims[int(rng.integers(len(dims)))], "keepdim": bool(rng.integers(2))}
    )
