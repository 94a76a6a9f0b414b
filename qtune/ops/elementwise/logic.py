"""What the logical operators share: bool masks in, bool masks out, no scale."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from qtune.errors import ExportError
from qtune.ops.elementwise import limits
from qtune.ops.elementwise.binding import output_elements
from qtune.ops.elementwise.fast import taker
from qtune.ops.elementwise.operands import copy_node, is_plain
from qtune.ops.elementwise.operands import mask as mask_value
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
from qtune.ops.spec import Bound, OpSpec, Rule, Sample, Target

Array = np.ndarray[Any, Any]


def bitwise(*masks: Any) -> Bound:
    """``~``, ``&``, ``|`` and their functions: logical on masks, bit by bit on integers."""
    return Bound(masks, {"bitwise": True})


def logical(
    name: str,
    onnx_op: str,
    functions: tuple[Callable[..., torch.Tensor], Callable[..., torch.Tensor]],
    numpy_function: Callable[..., Array],
    roles: tuple[str, ...],
    targets: tuple[Target, ...],
    doc: str,
) -> OpSpec:
    """An operator on masks; ``functions`` are torch's logical and bitwise one.

    Both are the same on masks, and only masks have a form in HBIR.
    """
    function, bitwise_function = functions

    def float_kernel(*masks: torch.Tensor, bitwise: bool = False) -> torch.Tensor:
        return bitwise_function(*masks) if bitwise else function(*masks)

    def lower(b: Builder, call: LowerCall) -> Any:
        wrong = {dtype for dtype in call.input_dtypes if dtype not in (None, "bool")}
        if wrong:
            raise ExportError(
                f"{call.name}: {name} takes bool masks, got {', '.join(sorted(map(str, wrong)))}. "
                "Compare with 0 first, or keep it outside the exported part"
            )
        return b.add(onnx_op, call.operands)

    def convert(ctx: ConvertContext, node: FloatNode) -> Operand:
        if is_plain(node):
            return copy_node(ctx, node, masks=True)
        values = [mask_value(ctx, node, index) for index in range(len(node.operands))]
        return PlainValue(ctx.add(onnx_op, values))

    def fast(node: KernelNode) -> FastKernel:
        take = taker(node, range(len(roles)))
        return lambda *args: function(*take(args))

    def run_float(attrs: Attrs, *masks: torch.Tensor) -> torch.Tensor:
        return function(*masks)

    def reference(attrs: Attrs, *masks: Array) -> Array:
        return numpy_function(*masks)

    return OpSpec(
        name=name,
        family="elementwise",
        rule=Rule.NO_SCALE,
        roles=roles,
        targets=targets,
        float_kernel=float_kernel,
        lower=lower,
        kernels=(
            HbirKernel(
                onnx_op, run_float=run_float, convert=convert, reference=reference, fast=fast
            ),
        ),
        march=limits.NOT_BERNOULLI,
        flops=output_elements,
        sample=lambda rng: Sample(((2, int(rng.integers(1, 9))),) * len(roles)),
        doc=doc,
    )
