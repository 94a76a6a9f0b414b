"""What the six comparisons share: bool results, operands compared over a common shift."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from qtune.arith_fast.held import offset
from qtune.ops.elementwise import limits
from qtune.ops.elementwise.binding import operand_value, output_elements, sample_binary
from qtune.ops.elementwise.fast import is_number, number, taker
from qtune.ops.elementwise.operands import codes, copy_node, is_plain, scalar
from qtune.ops.elementwise.scaling import fixed_point, integers, shared
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
    QValue,
    Value,
)
from qtune.ops.quant.codes import input_dtype
from qtune.ops.spec import OpSpec, Rule, Target

Array = np.ndarray[Any, Any]
_ONE = 1 << 14
_MIRRORED = {"QGreater": "QLess", "QLess": "QGreater", "QEqual": "QEqual"}
_MIRRORED |= {"QGreaterOrEqual": "QLessOrEqual", "QLessOrEqual": "QGreaterOrEqual"}


@dataclass(frozen=True, slots=True)
class Comparison:
    """A comparison by its ONNX name, its integer operator, and what computes it."""

    onnx_op: str
    torch_function: Callable[..., torch.Tensor]
    numpy_function: Callable[..., Array]

    @property
    def integer_op(self) -> str:
        """Name of the operator of the domain."""
        return f"Q{self.onnx_op}"

    def kernels(self) -> tuple[HbirKernel, HbirKernel]:
        """The float and the integer kernel."""

        def run_float(attrs: Attrs, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return self.torch_function(a, b)

        def reference(attrs: Attrs, a: Array, b: Array, ma: Array, mb: Array) -> Array:
            return self.numpy_function(a * ma, b * mb)

        return (
            HbirKernel(self.onnx_op, run_float=run_float, convert=self.convert),
            HbirKernel(self.integer_op, "qtune", reference=reference, fast=self.fast),
        )

    def convert(self, ctx: ConvertContext, node: FloatNode) -> Operand:
        """Bring both operands to integers whose order is that of the real values."""
        if is_plain(node):
            return copy_node(ctx, node, masks=True)
        for index in (0, 1):
            value = scalar(node, index)
            if value is not None:
                x = codes(ctx, node, 1 - index)
                return PlainValue(self._with_number(ctx, x, value, mirrored=index == 0))
        a, b = codes(ctx, node, 0), codes(ctx, node, 1)
        shift = shared(ctx, [(a.scale / b.scale, a.dtype), (1.0, b.dtype)], [a, b])
        constants = integers(ctx, ma=shift.m[0], mb=shift.m[1])
        inputs = [a.value, b.value, *constants]
        return PlainValue(ctx.add(self.integer_op, inputs, domain="qtune"))

    def _with_number(
        self, ctx: ConvertContext, x: QValue, value: float, *, mirrored: bool
    ) -> Value:
        """The number in steps of the codes, with 14 fraction bits."""
        limit = fixed_point(_on_grid(value / x.scale) * _ONE)
        number, ma, mb = integers(ctx, number=limit, ma=_ONE, mb=1)
        op_type = _MIRRORED[self.integer_op] if mirrored else self.integer_op
        return ctx.add(op_type, [x.value, number, ma, mb], domain="qtune")

    def fast(self, node: KernelNode) -> FastKernel:
        """The exact fast kernel."""
        ma, mb = number(node, 2), number(node, 3)
        bias = ma * offset(input_dtype(node, 0))
        if is_number(node, 1):
            take = taker(node, (0,))
            limit = number(node, 1) * mb + bias
            return lambda *args: self.torch_function(take(args)[0].to(torch.int64) * ma, limit)
        take = taker(node, (0, 1))
        bias -= mb * offset(input_dtype(node, 1))

        def kernel(*args: torch.Tensor) -> torch.Tensor:
            a, b = take(args)
            return self.torch_function(a.to(torch.int64) * ma - b.to(torch.int64) * mb, bias)

        return kernel


def _on_grid(steps: float) -> float:
    """``steps``, or the whole number that it is but for float32's rounding of the number.

    So a number on the grid (``x >= 0.5``) is equal to its code.
    """
    nearest = float(fixed_point(steps))
    return nearest if abs(steps - nearest) <= abs(nearest) * 2.0**-22 else steps


def lower_as(onnx_op: str) -> Callable[[Builder, LowerCall], Any]:
    """A lowering to one ONNX comparison."""

    def lower(b: Builder, call: LowerCall) -> Any:
        return b.add(onnx_op, [operand_value(b, call, 0), operand_value(b, call, 1)])

    return lower


def comparison(name: str, compared: Comparison, targets: tuple[Target, ...], doc: str) -> OpSpec:
    """The operator of a comparison that ONNX has."""
    return OpSpec(
        name=name,
        family="elementwise",
        rule=Rule.NO_SCALE,
        roles=("input", "other"),
        targets=targets,
        float_kernel=compared.torch_function,
        lower=lower_as(compared.onnx_op),
        kernels=compared.kernels(),
        march=limits.NOT_BERNOULLI,
        flops=output_elements,
        sample=sample_binary,
        doc=doc,
    )
