"""linear: ``x @ weight.T + bias`` on the last axis (numerics.md section 2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from qtune.errors import ConvertError
from qtune.ops.gemm import limits, reference
from qtune.ops.gemm.fast import fast_linear
from qtune.ops.gemm.kernels import integer_kernels
from qtune.ops.gemm.pending import GemmPending, constant_weight, optional_bias, quantized_input
from qtune.ops.gemm.samples import sample_linear
from qtune.ops.kernel import (
    Builder,
    ConvertContext,
    FastKernel,
    FloatConst,
    FloatNode,
    FloatValue,
    HbirKernel,
    KernelNode,
    LowerCall,
    Operand,
    QConst,
    Value,
)
from qtune.ops.registry import register
from qtune.ops.spec import Bound, FunctionTarget, FuseRole, ModuleTarget, OpSpec, Rule


def _bind_module(module: nn.Module, input: Any) -> Bound:
    return Bound((input, None, None))


def _bind(input: Any, weight: Any, bias: Any = None) -> Bound:
    return Bound((input, weight, bias))


def _lower(b: Builder, call: LowerCall) -> Value:
    """Matrices as ONNX Gemm, other ranks as ``qtune::Linear``: both run as ``F.linear``."""
    x, weight, bias = call.operands
    operands = [x, weight] if bias is None else [x, weight, bias]
    if len(call.input_shapes[0] or ()) == 2:
        return b.add("Gemm", operands, {"transB": 1})
    return b.add("LinearNoBias" if bias is None else "Linear", operands, {}, domain="qtune")


def _run_linear(
    attrs: Mapping[str, Any],
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    return F.linear(x, weight, bias)


def _run_gemm(
    attrs: Mapping[str, Any],
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor | None = None,
) -> torch.Tensor:
    a = a.t() if attrs.get("transA", 0) else a
    alpha, beta = attrs.get("alpha", 1.0), attrs.get("beta", 1.0)
    if attrs.get("transB", 0) and alpha == 1.0 and (c is None or (beta == 1.0 and c.dim() == 1)):
        return F.linear(a, b, c)
    product: torch.Tensor = a @ (b.t() if attrs.get("transB", 0) else b) * alpha
    return product if c is None else product + c * beta


def _reference_linear(attrs: Mapping[str, Any], *arrays: np.ndarray[Any, Any]) -> Any:
    """Outside the quantized region the float operator stays as it is."""
    return F.linear(*(torch.from_numpy(np.ascontiguousarray(a)) for a in arrays)).numpy()


def _fast_linear_float(node: KernelNode) -> FastKernel:
    bound = {i: torch.from_numpy(np.array(a)) for i, a in node.constants.items()}
    count = len(node.input_dtypes)

    def run(*tensors: torch.Tensor) -> torch.Tensor:
        waiting = iter(tensors)
        return F.linear(*(bound[i] if i in bound else next(waiting) for i in range(count)))

    return run


def _stay_float(ctx: ConvertContext, node: FloatNode) -> FloatValue:
    operands = [
        ctx.constant(o.data) if isinstance(o, FloatConst) else o.value
        for o in node.operands
        if isinstance(o, (FloatConst, FloatValue))
    ]
    return FloatValue(ctx.add(node.op_type, operands, {}, domain="qtune"))


def _convert(ctx: ConvertContext, node: FloatNode) -> Operand:
    if all(isinstance(operand, (FloatConst, FloatValue)) for operand in node.operands):
        return _stay_float(ctx, node)
    return GemmPending(
        name=node.name,
        base="QLinear",
        attrs={},
        x=quantized_input(node, 0),
        weight=constant_weight(node, 1),
        bias=optional_bias(node, 2),
    )


def _convert_gemm(ctx: ConvertContext, node: FloatNode) -> Operand:
    plain = {"alpha": 1.0, "beta": 1.0, "transA": 0}
    other = {k: v for k, v in node.attrs.items() if k in plain and v != plain[k]}
    if other:
        raise ConvertError(
            f"{node.name}: Gemm with {other} has no integer form; expected alpha=1, beta=1 and "
            "transA=0. Fold the factors into the weight and the bias"
        )
    return GemmPending(
        name=node.name,
        base="QLinear",
        attrs={},
        x=quantized_input(node, 0),
        weight=_output_major(constant_weight(node, 1), bool(node.attrs.get("transB", 0))),
        bias=optional_bias(node, 2),
    )


def _output_major(weight: QConst, is_output_major: bool) -> QConst:
    """The weight as [out, in] with its scales on axis 0."""
    if is_output_major:
        return weight
    axis = -1 if weight.scale.size == 1 else 1 - weight.axis % 2
    return replace(weight, codes=weight.codes.T, data=weight.data.T, axis=axis)


def _flops(
    attrs: Mapping[str, Any],
    input_shapes: Sequence[tuple[int, ...] | None],
    output_shape: tuple[int, ...],
) -> int:
    weight = input_shapes[1] or (0, 0)
    return int(np.prod(output_shape, dtype=np.int64)) * weight[1]


register(
    OpSpec(
        name="linear",
        family="gemm",
        rule=Rule.OWN_SCALE,
        roles=("input", "weight", "bias"),
        targets=(
            ModuleTarget(nn.Linear, _bind_module, {"weight": "weight", "bias": "bias"}),
            FunctionTarget(F.linear, _bind),
        ),
        float_kernel=F.linear,
        lower=_lower,
        kernels=(
            *(
                HbirKernel(
                    name,
                    "qtune",
                    run_float=_run_linear,
                    convert=_convert,
                    reference=_reference_linear,
                    fast=_fast_linear_float,
                )
                for name in ("Linear", "LinearNoBias")
            ),
            HbirKernel("Gemm", run_float=_run_gemm, convert=_convert_gemm),
            *integer_kernels("QLinear", reference.linear, fast_linear),
        ),
        weight_role="weight",
        weight_axis=lambda attrs: 0,
        fuse=FuseRole.GEMM,
        march=limits.LINEAR,
        flops=_flops,
        sample=sample_linear,
        doc="x @ weight.T + bias",
    )
)
