"""identity: what passes a tensor on (nn.Identity, contiguous, clone, detach, float of a float)."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from qtune.ops.kernel import (
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
from qtune.ops.quant.astype import emit_astype
from qtune.ops.quant.casting import (
    CAST,
    KIND,
    bind_float,
    bind_to,
    bind_to_dtype,
    bind_type_as,
)
from qtune.ops.registry import register
from qtune.ops.spec import Bound, FunctionTarget, MethodTarget, ModuleTarget, OpSpec, Rule, Sample


def _bind_module(module: nn.Module, input: Any) -> Bound:
    return Bound((input,), {"kind": "identity", "memory_format": None})


def _bind_same(input: Any) -> Bound:
    return Bound((input,), {"kind": "identity", "memory_format": None})


def _bind_copy(kind: str) -> Callable[..., Bound]:
    def bind(input: Any, *, memory_format: Any = None) -> Bound:
        return Bound((input,), {"kind": kind, "memory_format": memory_format})

    return bind


def _bind_detach(input: Any) -> Bound:
    return Bound((input,), {"kind": "detach", "memory_format": None})


def _float_kernel(
    input: torch.Tensor,
    kind: str = "identity",
    memory_format: Any = None,
    dtype: str | None = None,
) -> torch.Tensor:
    if dtype is not None:
        return input.to(getattr(torch, dtype))
    if kind == "identity":
        return input
    if kind == "detach":
        return input.detach()
    if kind == KIND:
        return input.float()
    layout = {} if memory_format is None else {"memory_format": memory_format}
    return input.contiguous(**layout) if kind == "contiguous" else input.clone(**layout)


def _lower(b: Builder, call: LowerCall) -> Value:
    if call.attrs.get("kind") == CAST:
        return emit_astype(b, call.operands[0], getattr(torch, call.attrs["dtype"]))
    return b.add("Identity", [call.operands[0]])


def _run_float(attrs: Mapping[str, Any], x: torch.Tensor) -> torch.Tensor:
    return x


def _convert(ctx: ConvertContext, node: FloatNode) -> Operand | None:
    return node.operands[0]


def _reference(attrs: Mapping[str, Any], x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return x


def _fast(node: KernelNode) -> FastKernel:
    return lambda x: x


register(
    OpSpec(
        name="identity",
        family="quant",
        rule=Rule.INPUT_SCALE,
        roles=("input",),
        targets=(
            ModuleTarget(nn.Identity, _bind_module),
            FunctionTarget(torch.clone, _bind_copy("clone")),
            FunctionTarget(torch.detach, _bind_detach),
            FunctionTarget(torch.detach_, _bind_detach),
            MethodTarget("clone", _bind_copy("clone")),
            MethodTarget("contiguous", _bind_copy("contiguous")),
            MethodTarget("detach", _bind_detach),
            MethodTarget("detach_", _bind_detach),
            FunctionTarget(torch.positive, _bind_same),
            FunctionTarget(operator.pos, _bind_same),
            MethodTarget("positive", _bind_same),
            MethodTarget("__pos__", _bind_same),
            MethodTarget("float", bind_float),
            MethodTarget("long", bind_to_dtype(torch.int64, "long()")),
            MethodTarget("int", bind_to_dtype(torch.int32, "int()")),
            MethodTarget("short", bind_to_dtype(torch.int16, "short()")),
            MethodTarget("char", bind_to_dtype(torch.int8, "char()")),
            MethodTarget("byte", bind_to_dtype(torch.uint8, "byte()")),
            MethodTarget("bool", bind_to_dtype(torch.bool, "bool()")),
            MethodTarget("to", bind_to),
            MethodTarget("type_as", bind_type_as),
        ),
        float_kernel=_float_kernel,
        lower=_lower,
        kernels=(
            HbirKernel(
                "Identity",
                run_float=_run_float,
                convert=_convert,
                reference=_reference,
                fast=_fast,
            ),
        ),
        flops=lambda attrs, input_shapes, output_shape: 0,
        sample=lambda rng: Sample(
            ((2, int(rng.integers(1, 9))),), {"kind": "identity", "memory_format": None}
        ),
        doc="passes its input on; masks and integers also as another type",
    )
)
