"""where: ``input`` where the mask holds, else ``other``; either may be a number."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from qtune.arith.requantize import rescale
from qtune.arith_fast.held import channels_last
from qtune.ops.elementwise import limits
from qtune.ops.elementwise.binding import operand_value, output_elements
from qtune.ops.elementwise.fast import clipped, taker
from qtune.ops.elementwise.operands import copy_node, mask
from qtune.ops.elementwise.selecting import deferred_choice, to_output_grid
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
    Pending,
    QConst,
    QValue,
)
from qtune.ops.registry import register
from qtune.ops.spec import Bound, FunctionTarget, MethodTarget, OpSpec, Rule, Sample

Array = np.ndarray[Any, Any]

_MISSING = object()


def _bind(condition: Any, input: Any = _MISSING, other: Any = _MISSING) -> Bound:
    if input is _MISSING or other is _MISSING:
        raise NotImplementedError(
            "torch.where(condition) alone gives indices, the number of which depends on the data; "
            "that has no form on the BPU. Use torch.where(condition, input, other)"
        )
    return Bound((condition, input, other))


def _bind_method(input: Any, condition: Any, other: Any) -> Bound:
    return Bound((condition, input, other))


def _lower(b: Builder, call: LowerCall) -> Any:
    chosen = [operand_value(b, call, 1), operand_value(b, call, 2)]
    return b.add("Where", [call.operands[0], *chosen])


def _convert(ctx: ConvertContext, node: FloatNode) -> Operand:
    if not any(isinstance(operand, QValue | QConst | Pending) for operand in node.operands[1:]):
        return copy_node(ctx, node)
    return deferred_choice(ctx, "QWhere", node, (1, 2), [mask(ctx, node, 0)])


def _reference(
    attrs: Attrs, condition: Array, a: Array, b: Array, ma: Array, mb: Array, n: Array
) -> Array:
    return clipped(attrs, rescale(np.where(condition, a * ma, b * mb), 1, n))


def _fast(node: KernelNode) -> FastKernel:
    take = taker(node, (0, 1, 2))
    on_grid = [to_output_grid(node, index, 2 + index, 5) for index in (1, 2)]

    def kernel(*args: torch.Tensor) -> torch.Tensor:
        condition, a, b = take(args)
        return channels_last(torch.where(condition, on_grid[0](a), on_grid[1](b)))

    return kernel


def _sample(rng: np.random.Generator) -> Sample:
    shape = (2, 3, int(rng.integers(1, 7)), int(rng.integers(1, 7)))
    return Sample((shape[2:], shape, (1, 3, 1, 1)))


register(
    OpSpec(
        name="where",
        family="elementwise",
        rule=Rule.OWN_SCALE,
        roles=("condition", "input", "other"),
        targets=(FunctionTarget(torch.where, _bind), MethodTarget("where", _bind_method)),
        float_kernel=torch.where,
        lower=_lower,
        kernels=(
            HbirKernel(
                "Where",
                run_float=lambda attrs, condition, a, b: torch.where(condition, a, b),
                convert=_convert,
            ),
            HbirKernel("QWhere", "qtune", reference=_reference, fast=_fast),
        ),
        march=limits.NOT_BERNOULLI,
        flops=output_elements,
        sample=_sample,
        doc="input where the mask holds, else other",
    )
)
