"""What maximum, minimum, where and masked_fill share: a choice over a common shift.

Multipliers are positive and a rounded shift keeps the order, so choosing and rounding may change
places: the fast kernels bring each operand to the output's grid first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from qtune.arith.requantize import rescale
from qtune.arith_fast.held import channels_last, held_dtype, offset
from qtune.dtype import QuantDType
from qtune.ops.elementwise.fast import clipped, is_number, number, requantizer, taker
from qtune.ops.elementwise.operands import Deferred, codes, scalar
from qtune.ops.elementwise.scaling import integers, shared
from qtune.ops.kernel import (
    Attrs,
    ConvertContext,
    FastKernel,
    FloatNode,
    HbirKernel,
    KernelNode,
    Operand,
    QValue,
    Value,
)
from qtune.ops.quant.codes import input_dtype, output_dtype

Array = np.ndarray[Any, Any]


def deferred_choice(
    ctx: ConvertContext, op_type: str, node: FloatNode, indices: tuple[int, int], lead: list[Value]
) -> Operand:
    """One of two operands, each codes or a number; ``lead`` are the values before them."""
    operands = [_operand(ctx, node, index) for index in indices]

    def emit(ctx: ConvertContext, scale: float, dtype: QuantDType, attrs: dict[str, int]) -> Value:
        tensors = [o for o in operands if isinstance(o, QValue)]
        shift = shared(ctx, [(t.scale / scale, t.dtype) for t in tensors], tensors)
        multipliers = iter(shift.m)
        values, factors = [], []
        for operand in operands:
            if isinstance(operand, QValue):
                values.append(operand.value)
                factors.append(next(multipliers))
            else:
                values += integers(ctx, number=shift.term(operand / scale))
                factors.append(1)
        constants = integers(ctx, ma=factors[0], mb=factors[1], n=shift.n)
        return ctx.add(op_type, [*lead, *values, *constants], attrs, domain="qtune")

    return Deferred(emit)


def _operand(ctx: ConvertContext, node: FloatNode, index: int) -> QValue | float:
    value = scalar(node, index)
    return codes(ctx, node, index) if value is None else value


def extremum_kernel(
    op_type: str,
    choose: Callable[[Array, Array], Array],
    choose_held: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> HbirKernel:
    """The integer kernel of maximum or minimum."""

    def reference(attrs: Attrs, a: Array, b: Array, ma: Array, mb: Array, n: Array) -> Array:
        return clipped(attrs, rescale(choose(a * ma, b * mb), 1, n))

    def fast(node: KernelNode) -> FastKernel:
        take = taker(node, (0, 1))
        on_grid = [to_output_grid(node, index, 2 + index, 4) for index in (0, 1)]

        def kernel(*args: torch.Tensor) -> torch.Tensor:
            a, b = take(args)
            return channels_last(choose_held(on_grid[0](a), on_grid[1](b)))

        return kernel

    return HbirKernel(op_type, "qtune", reference=reference, fast=fast)


def to_output_grid(
    node: KernelNode, index: int, multiplier: int, shift: int
) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return what brings the operand ``index`` to the held codes of the node's output."""
    m, n = number(node, multiplier), number(node, shift)
    if is_number(node, index):
        out = output_dtype(node)
        code = int(clipped(node.attrs, rescale(number(node, index) * m, 1, n)))
        constant = torch.tensor(code + offset(out), dtype=held_dtype(out))
        return lambda _: constant
    dtype = input_dtype(node, index)
    return requantizer(node, m, n, bound=-dtype.qmin, zero=offset(dtype))
