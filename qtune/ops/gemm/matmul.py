"""matmul of two activations: no bias, one multiplier (numerics.md section 2.5)."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from qtune.dtype import QuantDType
from qtune.errors import ConvertError
from qtune.ops.gemm import limits, reference
from qtune.ops.gemm.fast import fast_matmul
from qtune.ops.gemm.pending import (
    DOMAIN,
    check_high_precision,
    check_operands,
    check_requantize,
    clamp_float,
    requantizes_apart,
)
from qtune.ops.gemm.samples import sample_matmul
from qtune.ops.gemm.saturation import saturate_accumulator
from qtune.ops.gemm.variants import VARIANTS, Variant, variant
from qtune.ops.kernel import (
    Builder,
    ConvertContext,
    FloatNode,
    FloatValue,
    HbirKernel,
    LowerCall,
    Operand,
    Pending,
    QConst,
    QValue,
    Value,
)
from qtune.ops.operand_words import GIVE_SCALE, described
from qtune.ops.quant.codes import code_bounds, onnx_type, stored, tighten
from qtune.ops.quant.precision import multiplier
from qtune.ops.registry import register
from qtune.ops.spec import Bound, FunctionTarget, MethodTarget, OpSpec, Rule

Array = np.ndarray[Any, Any]
FORMS = ("", "Acc")


@dataclass(frozen=True, slots=True)
class MatmulPending(Pending):
    """A product of two quantized tensors whose output scale is still to come."""

    name: str
    a: QValue
    b: QValue
    low: float | None = None
    high: float | None = None

    def emit(self, ctx: ConvertContext, scale: float, dtype: QuantDType) -> QValue:
        """Emit QMatMul: exact sum, one requantize."""
        kind = self._variant(ctx)
        check_requantize(ctx, self.name, dtype)
        m, n = multiplier(ctx, self._acc_scale() / float(np.float32(scale)))
        lo, hi = code_bounds(self.low, self.high, scale, dtype)
        factors = [ctx.constant(np.array(v, dtype=np.int64), k) for v, k in ((m, "m"), (n, "n"))]
        name, operands = f"QMatMul{kind.suffix}", [self.a.value, self.b.value]
        if requantizes_apart(ctx, kind):
            name, operands = "Requantize", [ctx.add(f"{name}Acc", operands, {}, domain=DOMAIN)]
        attrs = {"lo": lo, "hi": hi, "to": onnx_type(dtype)}
        value = ctx.add(name, [*operands, *factors], attrs, domain=DOMAIN)
        return QValue(value, dtype, scale, lo, hi)

    def clamp(self, ctx: ConvertContext, low: float | None, high: float | None) -> Pending:
        """Clamp the output codes."""
        new_low, new_high = tighten(self.low, self.high, low, high)
        return replace(self, low=new_low, high=new_high)

    def dequantize(self, ctx: ConvertContext) -> FloatValue:
        """Emit the int32 accumulator times both scales in float32."""
        kind = self._variant(ctx)
        check_high_precision(self.name, kind)
        acc = ctx.add(f"QMatMul{kind.suffix}Acc", [self.a.value, self.b.value], {}, domain=DOMAIN)
        scales = [
            ctx.constant(np.array(operand.scale, dtype=np.float32), suffix)
            for operand, suffix in ((self.a, "s_a"), (self.b, "s_b"))
        ]
        value = ctx.add("DequantizeAcc", [acc, *scales], {}, domain=DOMAIN)
        return clamp_float(ctx, value, self.low, self.high)

    def _variant(self, ctx: ConvertContext) -> Variant:
        check_operands(ctx, self.name, self.a, self.b)
        return variant(self.a.dtype, self.b.dtype)

    def _acc_scale(self) -> float:
        return float(np.float32(self.a.scale)) * float(np.float32(self.b.scale))


def _bind(input: Any, other: Any) -> Bound:
    return Bound((input, other))


def _bind_matrices(input: Any, mat2: Any) -> Bound:
    return Bound((input, mat2))


def _bind_vector(input: Any, vec: Any) -> Bound:
    return Bound((input, vec))


def _bind_dot(input: Any, tensor: Any) -> Bound:
    return Bound((input, tensor))


def _bind_reflected(input: Any, other: Any) -> Bound:
    return Bound((other, input))


def _lower(b: Builder, call: LowerCall) -> Value:
    return b.add("MatMul", call.operands)


def _run_float(attrs: Mapping[str, Any], a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.matmul(a, b)


def _convert(ctx: ConvertContext, node: FloatNode) -> Operand:
    a, b = (_codes(ctx, node, index) for index in range(2))
    return MatmulPending(node.name, a, b)


def _codes(ctx: ConvertContext, node: FloatNode, index: int) -> QValue:
    """An operand as codes in the graph; a constant is one with a scale of its own."""
    operand = node.operands[index]
    if isinstance(operand, QValue):
        return operand
    if isinstance(operand, QConst) and operand.scale.size == 1:
        value = ctx.constant(stored(operand.codes, operand.dtype), f"operand{index}")
        return QValue(value, operand.dtype, float(operand.scale.reshape(())))
    raise ConvertError(
        f"{node.name}: operand {index} of matmul is {described(operand)}; expected quantized "
        f"codes with one scale. {GIVE_SCALE}"
    )


def _reference(bits: int, form: str) -> Any:
    def run(attrs: Mapping[str, Any], a: Array, b: Array, *factors: Array) -> Array:
        acc = saturate_accumulator(reference.matmul(attrs, a, b), bits)
        return acc if form == "Acc" else reference.finish(attrs, acc, *factors)

    return run


def _fast(bits: int, form: str) -> Any:
    return lambda node: fast_matmul(node, bits, form)


def _kernels() -> list[HbirKernel]:
    return [
        HbirKernel(
            f"QMatMul{kind.suffix}{form}",
            DOMAIN,
            reference=_reference(kind.accumulator_bits, form),
            fast=_fast(kind.accumulator_bits, form),
        )
        for kind in VARIANTS
        for form in FORMS
        if form in kind.forms
    ]


def _flops(
    attrs: Mapping[str, Any],
    input_shapes: Sequence[tuple[int, ...] | None],
    output_shape: tuple[int, ...],
) -> int:
    inner = (input_shapes[0] or (0,))[-1]
    return int(np.prod(output_shape, dtype=np.int64)) * inner


register(
    OpSpec(
        name="matmul",
        family="gemm",
        rule=Rule.OWN_SCALE,
        roles=("input", "other"),
        targets=(
            FunctionTarget(torch.matmul, _bind),
            FunctionTarget(torch.linalg.matmul, _bind),
            FunctionTarget(torch.bmm, _bind_matrices),
            FunctionTarget(torch.mm, _bind_matrices),
            FunctionTarget(operator.matmul, _bind),
            MethodTarget("matmul", _bind),
            MethodTarget("bmm", _bind_matrices),
            MethodTarget("mm", _bind_matrices),
            FunctionTarget(torch.mv, _bind_vector),
            FunctionTarget(torch.dot, _bind_dot),
            FunctionTarget(torch.vdot, _bind),
            MethodTarget("mv", _bind_vector),
            MethodTarget("dot", _bind_dot),
            MethodTarget("vdot", _bind),
            MethodTarget("__matmul__", _bind),
            MethodTarget("__rmatmul__", _bind_reflected),
            MethodTarget("__imatmul__", _bind),
        ),
        float_kernel=torch.matmul,
        lower=_lower,
        kernels=(HbirKernel("MatMul", run_float=_run_float, convert=_convert), *_kernels()),
        march=limits.MATMUL,
        flops=_flops,
        sample=sample_matmul,
        doc="matrix product of two activations",
    )
)
