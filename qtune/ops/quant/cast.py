"""Casts between float32 and float16: what ``FakeCast`` becomes in HBIR (numerics.md section 7)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from qtune.arith.quantize import dequantize
from qtune.errors import ConvertError
from qtune.ops.kernel import (
    Builder,
    ConvertContext,
    FloatConst,
    FloatNode,
    FloatValue,
    HbirKernel,
    Operand,
    Pending,
    PlainValue,
    QConst,
    QValue,
    Value,
)
from qtune.ops.registry import register_kernel

ONNX_FLOAT, ONNX_FLOAT16 = 1, 10
"""Values of onnx.TensorProto.DataType, for the attribute ``to``."""

_TORCH = {ONNX_FLOAT: torch.float32, ONNX_FLOAT16: torch.float16}


def emit_float16(b: Builder, value: Value) -> Value:
    """Append the pair of casts that rounds a float32 value to float16; the result is float32."""
    held = b.add("Cast", [value], {"to": ONNX_FLOAT16}, suffix="float16")
    return b.add("Cast", [held], {"to": ONNX_FLOAT}, suffix="float32")


def _run(attrs: Mapping[str, Any], x: torch.Tensor) -> torch.Tensor:
    return x.to(_TORCH[attrs["to"]])


def _convert(ctx: ConvertContext, node: FloatNode) -> Operand:
    """Integers enter float16 by their real value, a GEMM by its exact sum."""
    value = _real(ctx, node, node.operands[0])
    return FloatValue(ctx.add("Cast", [value], node.attrs))


def _real(ctx: ConvertContext, node: FloatNode, operand: Operand | None) -> Value:
    if isinstance(operand, QValue):
        return ctx.dequantize(operand).value
    if isinstance(operand, (FloatValue, PlainValue)):
        return operand.value
    if isinstance(operand, FloatConst):
        return ctx.constant(operand.data)
    if isinstance(operand, QConst):
        data = dequantize(operand.codes, operand.scale, operand.axis)
        return ctx.constant(data.astype(np.float32))
    exact = operand.dequantize(ctx) if isinstance(operand, Pending) else None
    if exact is None:
        raise ConvertError(
            f"{node.name}: the operator before the cast to float16 has no exact result to cast. "
            "Give it an integer output dtype"
        )
    return exact.value


register_kernel(HbirKernel("Cast", run_float=_run, convert=_convert))
