"""mul: ``input * other``; a number goes into the one multiplier (numerics.md section 3)."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from qtune.arith.requantize import rescale
from qtune.dtype import QuantDType
from qtune.ops.elementwise import limits
from qtune.ops.elementwise.binding import (
    binary,
    operand_value,
    output_elements,
    reflected,
    sample_binary,
)
from qtune.ops.elementwise.fast import clipped, number, requantizer, taker
from qtune.ops.elementwise.operands import (
    Deferred,
    codes,
    copy_node,
    is_plain,
    scalar,
    scaled_by,
)
from qtune.ops.elementwise.scaling import integers, single
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
    Value,
)
from qtune.ops.quant.codes import input_dtype
from qtune.ops.registry import register
from qtune.ops.spec import Bound, FunctionTarget, MethodTarget, OpSpec, Rule

Array = np.ndarray[Any, Any]


def _bind_by(factor: float) -> Callable[..., Bound]:
    """``deg2rad``, ``rad2deg``."""

    def bind(input: Any) -> Bound:
        return Bound((input, factor))

    return bind


def _mul(input: Any, other: Any) -> torch.Tensor:
    return torch.mul(input, other)


def _lower(b: Builder, call: LowerCall) -> Any:
    dtypes = call.input_dtypes or ("float32",) * 2
    for index in (0, 1):
        if dtypes[index] == "bool" and dtypes[1 - index] == "float32":
            zero = b.constant(np.zeros((), dtype=np.float32), "zero")
            return b.add("Where", [call.operands[index], call.operands[1 - index], zero])
    return b.add("Mul", [operand_value(b, call, 0), operand_value(b, call, 1)])


def _convert(ctx: ConvertContext, node: FloatNode) -> Operand:
    if is_plain(node):
        return copy_node(ctx, node)
    for index in (0, 1):
        factor = scalar(node, index)
        if factor is not None:
            return scaled_by(codes(ctx, node, 1 - index), factor)
    a, b = codes(ctx, node, 0), codes(ctx, node, 1)

    def emit(ctx: ConvertContext, scale: float, dtype: QuantDType, attrs: dict[str, int]) -> Value:
        shift = single(ctx, a.scale * b.scale / scale)
        constants = integers(ctx, m=shift.m[0], n=shift.n)
        return ctx.add("QMul", [a.value, b.value, *constants], attrs, domain="qtune")

    return Deferred(emit)


def _reference(attrs: Attrs, a: Array, b: Array, m: Array, n: Array) -> Array:
    return clipped(attrs, rescale(a * b, m, n))


def _fast(node: KernelNode) -> FastKernel:
    take = taker(node, (0, 1))
    dtypes = [input_dtype(node, index) for index in (0, 1)]
    bound = dtypes[0].qmin * dtypes[1].qmin
    step = requantizer(node, number(node, 2), number(node, 3), bound=bound)

    def kernel(*args: torch.Tensor) -> torch.Tensor:
        return step.product(*take(args))

    return kernel


register(
    OpSpec(
        name="mul",
        family="elementwise",
        rule=Rule.OWN_SCALE,
        roles=("input", "other"),
        targets=(
            FunctionTarget(torch.mul, binary),
            FunctionTarget(torch.multiply, binary),
            FunctionTarget(operator.mul, binary),
            FunctionTarget(operator.imul, binary),
            MethodTarget("mul", binary),
            MethodTarget("mul_", binary),
            MethodTarget("multiply", binary),
            MethodTarget("multiply_", binary),
            FunctionTarget(torch.deg2rad, _bind_by(math.pi / 180)),
            FunctionTarget(torch.deg2rad_, _bind_by(math.pi / 180)),
            FunctionTarget(torch.rad2deg, _bind_by(180 / math.pi)),
            FunctionTarget(torch.rad2deg_, _bind_by(180 / math.pi)),
            MethodTarget("deg2rad", _bind_by(math.pi / 180)),
            MethodTarget("deg2rad_", _bind_by(math.pi / 180)),
            MethodTarget("rad2deg", _bind_by(180 / math.pi)),
            MethodTarget("rad2deg_", _bind_by(180 / math.pi)),
            MethodTarget("__mul__", binary),
            MethodTarget("__rmul__", reflected),
            MethodTarget("__imul__", binary),
        ),
        float_kernel=_mul,
        lower=_lower,
        kernels=(
            HbirKernel("Mul", run_float=lambda attrs, a, b: torch.mul(a, b), convert=_convert),
            HbirKernel("QMul", "qtune", reference=_reference, fast=_fast),
        ),
        march=limits.ADD_MUL,
        flops=output_elements,
        sample=sample_binary,
        doc="input * other; a mask as an operand is a choice between the other one and 0",
    )
)
