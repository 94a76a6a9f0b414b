"""quant_stub: float data become codes of the stub's own scale."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from qtune.ops.kernel import Builder, LowerCall, Value
from qtune.ops.quant.stubs import QuantStub, torch_stubs
from qtune.ops.registry import register
from qtune.ops.spec import Bound, MarchRule, ModuleTarget, OpSpec, Rule, Sample


def _bind(module: nn.Module, x: Any) -> Bound:
    return Bound((x,), {"scale": getattr(module, "scale", None)})


def _float_kernel(input: torch.Tensor, scale: float | None = None) -> torch.Tensor:
    return input


def _lower(b: Builder, call: LowerCall) -> Value:
    return b.add("Identity", [call.operands[0]])


register(
    OpSpec(
        name="quant_stub",
        family="quant",
        rule=Rule.OWN_SCALE,
        roles=("input",),
        targets=tuple(ModuleTarget(cls, _bind) for cls in (QuantStub, *torch_stubs()[0])),
        float_kernel=_float_kernel,
        lower=_lower,
        march=(
            MarchRule(("bernoulli",), ("float32",), ("qint8",)),
            MarchRule(("bayes", "nash"), ("float32",), ("qint8", "qint16")),
        ),
        flops=lambda attrs, input_shapes, output_shape: 0,
        sample=lambda rng: Sample(((2, int(rng.integers(1, 9))),), {"scale": None}),
        doc="start of the quantized region",
    )
)
