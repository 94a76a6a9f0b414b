"""AsType: masks and integers as numbers of another type; what ``x.float()`` of a mask becomes."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import torch

from qtune.errors import ConvertError
from qtune.ops.elementwise.fast import run_everywhere
from qtune.ops.kernel import (
    Attrs,
    Builder,
    ConvertContext,
    FloatConst,
    FloatNode,
    FloatValue,
    HbirKernel,
    Operand,
    PlainValue,
    Value,
)
from qtune.ops.registry import register_kernel

FLOAT = 1
_TO_ONNX: Mapping[torch.dtype, int] = MappingProxyType(
    {
        torch.float32: FLOAT,
        torch.uint8: 2,
        torch.int8: 3,
        torch.int16: 5,
        torch.int32: 6,
        torch.int64: 7,
        torch.bool: 9,
    }
)
_TO_TORCH = {number: dtype for dtype, number in _TO_ONNX.items()}


def emit_astype(b: Builder, value: Value, dtype: torch.dtype) -> Value:
    """Append an AsType node: masks, integers and float32 as ``dtype``."""
    return b.add("AsType", [value], {"to": _TO_ONNX[dtype]}, domain="qtune")


def _run_float(attrs: Attrs, x: torch.Tensor) -> torch.Tensor:
    return x.to(_TO_TORCH[attrs["to"]])


def _convert(ctx: ConvertContext, node: FloatNode) -> Operand:
    operand = node.operands[0]
    if isinstance(operand, FloatConst):
        value = ctx.constant(operand.data)
    elif isinstance(operand, PlainValue | FloatValue):
        value = operand.value
    else:
        raise ConvertError(
            f"{node.name}: a cast of quantized numbers to {_TO_TORCH[node.attrs['to']]} has no "
            "integer form. Cast where they are float again (behind the DeQuantStub)"
        )
    result = ctx.add("AsType", [value], node.attrs, domain="qtune")
    return FloatValue(result) if node.attrs["to"] == FLOAT else PlainValue(result)


register_kernel(
    run_everywhere(HbirKernel("AsType", "qtune", run_float=_run_float, convert=_convert))
)
