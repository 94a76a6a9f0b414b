"""dequant_stub: codes become float data; HBIR's ``qtune::Barrier`` keeps the place until then."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from qtune.errors import ConvertError
from qtune.ops.kernel import (
    Builder,
    ConvertContext,
    FloatNode,
    HbirKernel,
    LowerCall,
    Operand,
    Pending,
    QValue,
    Value,
)
from qtune.ops.quant.stubs import DeQuantStub, torch_stubs
from qtune.ops.registry import register
from qtune.ops.spec import Bound, MarchRule, ModuleTarget, OpSpec, Rule, Sample


def _bind(module: nn.Module, x: Any) -> Bound:
    return Bound((x,))


def _float_kernel(input: torch.Tensor) -> torch.Tensor:
    return input


def _lower(b: Builder, call: LowerCall) -> Value:
    return b.add("Barrier", [call.operands[0]], {}, domain="qtune")


def _run_float(attrs: Mapping[str, Any], x: torch.Tensor) -> torch.Tensor:
    return x


def _convert(ctx: ConvertContext, node: FloatNode) -> Operand | None:
    operand = node.operands[0]
    if isinstance(operand, QValue):
        return ctx.dequantize(operand)
    if isinstance(operand, Pending):
        result = operand.dequantize(ctx)
        if result is None:
            raise ConvertError(
                f"{node.name}: the operator before this DeQuantStub has neither an output scale "
                "nor a high-precision output. Give it a qconfig with an output dtype"
            )
        return result
    return operand


register(
    OpSpec(
        name="dequant_stub",
        family="quant",
        rule=Rule.NO_SCALE,
        roles=("input",),
        targets=tuple(ModuleTarget(cls, _bind) for cls in (DeQuantStub, *torch_stubs()[1])),
        float_kernel=_float_kernel,
        lower=_lower,
        kernels=(HbirKernel("Barrier", "qtune", run_float=_run_float, convert=_convert),),
        march=(
            MarchRule(("bernoulli",), ("qint8", "qint32"), ("float32",)),
            MarchRule(("bayes", "nash"), ("qint8", "qint16", "qint32"), ("float32",)),
        ),
        flops=lambda attrs, input_shapes, output_shape: 0,
        sample=lambda rng: Sample(((2, int(rng.integers(1, 9))),)),
        doc="end of the quantized region",
    )
)
