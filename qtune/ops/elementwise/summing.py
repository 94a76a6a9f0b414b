"""The integer rule of add and sub: one sum over a common shift, one rounding (numerics.md 3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from qtune.arith.requantize import rescale
from qtune.dtype import QuantDType
from qtune.errors import ConvertError
from qtune.ops.elementwise.fast import clipped, is_number, number, sum_kernel, taker
from qtune.ops.elementwise.operands import Deferred, codes, copy_node, is_plain, scalar
from qtune.ops.elementwise.scaling import integers, shared
from qtune.ops.kernel import (
    Attrs,
    ConvertContext,
    FastKernel,
    FloatNode,
    KernelNode,
    Operand,
    Pending,
    QValue,
    Value,
)
from qtune.ops.operand_words import GIVE_SCALE

Array = np.ndarray[Any, Any]


def convert_sum(
    ctx: ConvertContext, node: FloatNode, signs: Sequence[float], domain: str = ""
) -> Operand:
    """``signs[0] * operand 0 + signs[1] * operand 1``, either of them codes or a number."""
    if is_plain(node):
        return copy_node(ctx, node, domain=domain)
    if any(isinstance(operand, Pending) for operand in node.operands):
        return _accumulated(ctx, node, signs)
    terms: list[QValue] = []
    factors: list[float] = []
    number = 0.0
    for index, sign in enumerate(signs):
        value = scalar(node, index)
        if value is None:
            terms.append(codes(ctx, node, index))
            factors.append(sign)
        else:
            number += sign * value

    def emit(ctx: ConvertContext, scale: float, dtype: QuantDType, attrs: dict[str, int]) -> Value:
        pairs = zip(factors, terms, strict=True)
        shift = shared(ctx, [(f * t.scale / scale, t.dtype) for f, t in pairs], terms)
        if len(terms) == 2:
            a, b = (term.value for term in terms)
            constants = integers(ctx, ma=shift.m[0], mb=shift.m[1], n=shift.n)
        else:
            a = terms[0].value
            b, *constants = integers(
                ctx, addend=shift.term(number / scale), ma=shift.m[0], mb=1, n=shift.n
            )
        return ctx.add("QAdd", [a, b, *constants], attrs, domain="qtune")

    return Deferred(emit)


def _accumulated(ctx: ConvertContext, node: FloatNode, signs: Sequence[float]) -> Operand:
    """The fused form: the sum joins the accumulator of the GEMM before it."""
    for index in (0, 1):
        gemm, addend = node.operands[index], node.operands[1 - index]
        if isinstance(gemm, Pending) and isinstance(addend, QValue) and set(signs) == {1}:
            fused = gemm.accumulate(ctx, addend)
            if fused is not None:
                return fused
    raise ConvertError(
        f"{node.name}: an operand of {node.op_type} has no output scale and can't take the other "
        f"one into its accumulator. {GIVE_SCALE}"
    )


def reference_add(attrs: Attrs, a: Array, b: Array, ma: Array, mb: Array, n: Array) -> Array:
    """``clip((a * ma + b * mb + half) >> n, lo, hi)``."""
    return clipped(attrs, rescale(a * ma + b * mb, 1, n))


def fast_add(node: KernelNode) -> FastKernel:
    """The exact fast form of :func:`reference_add`."""
    ma, mb, n = (number(node, index) for index in (2, 3, 4))
    if is_number(node, 1):
        indices, multipliers, constant = [0], [ma], number(node, 1) * mb
    else:
        indices, multipliers, constant = [0, 1], [ma, mb], 0
    take = taker(node, indices)
    kernel = sum_kernel(node, indices, multipliers, constant, n)
    return lambda *args: kernel(take(args))
