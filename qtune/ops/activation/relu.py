"""relu: ``max(x, 0)``; keeps the input's scale (numerics.md section 3)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from qtune.errors import ConvertError
from qtune.ops.kernel import (
    Builder,
    ConvertContext,
    FastKernel,
    FloatNode,
    HbirKernel,
    KernelNode,
    LowerCall,
    Operand,
    Pending,
    QValue,
)
from qtune.ops.registry import register
from qtune.ops.spec import (
    Bound,
    FunctionTarget,
    FuseRole,
    MethodTarget,
    ModuleTarget,
    OpSpec,
    Rule,
    Sample,
)


def _bind(input: Any, inplace: bool = False) -> Bound:
    return Bound((input,))


def _bind_module(module: nn.Module, input: Any) -> Bound:
    return Bound((input,))


def _lower(b: Builder, call: LowerCall) -> Any:
    return b.add("Relu", [call.operands[0]])


def _run_float(attrs: Any, x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x)


def _convert(ctx: ConvertContext, node: FloatNode) -> Operand:
    (x,) = node.operands
    if isinstance(x, Pending):
        fused = x.clamp(ctx, 0.0, None)
        if fused is not None:
            return fused
    if isinstance(x, QValue):
        value = ctx.add("Relu", [x.value])
        return QValue(value, x.dtype, x.scale, 0, x.code_max)
    raise ConvertError(
        f"{node.name}: relu got {type(x).__name__} where quantized codes were expected. "
        "Give its input a qconfig, or keep it out of the quantized region."
    )


def _reference(attrs: Any, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.maximum(x, 0)


def _fast(node: KernelNode) -> FastKernel:
    zero = 128 if node.input_dtypes[0] == "int8" else 0
    return lambda x: x.clamp_min(zero)


register(
    OpSpec(
        name="relu",
        family="activation",
        rule=Rule.INPUT_SCALE,
        roles=("input",),
        targets=(
            ModuleTarget(nn.ReLU, _bind_module),
            FunctionTarget(F.relu, _bind),
            FunctionTarget(torch.relu, _bind),
            MethodTarget("relu", _bind),
            MethodTarget("relu_", _bind),
        ),
        float_kernel=F.relu,
        lower=_lower,
        kernels=(
            HbirKernel(
                "Relu", run_float=_run_float, convert=_convert, reference=_reference, fast=_fast
            ),
        ),
        fuse=FuseRole.RELU,
        sample=lambda rng: Sample(((2, 3, int(rng.integers(1, 9)), int(rng.integers(1, 9))),)),
        doc="max(x, 0)",
    )
)
