"""clamp_scalar and hardtanh: ``x`` between two numbers; keeps the input's scale."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from qtune.ops.activation.clamping import bound_of, convert_clamp, lower_clip
from qtune.ops.elementwise import limits
from qtune.ops.elementwise.binding import output_elements, sample_unary
from qtune.ops.kernel import (
    Attrs,
    Builder,
    ConvertContext,
    FloatNode,
    HbirKernel,
    LowerCall,
    Operand,
)
from qtune.ops.registry import register
from qtune.ops.spec import (
    Bound,
    FunctionTarget,
    ModuleTarget,
    OpSpec,
    Rule,
    Sample,
)


def _bind(input: Any, low: Any, high: Any) -> Bound:
    return Bound((input,), {"min": low, "max": high})


def _bind_hardtanh(
    input: Any, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False
) -> Bound:
    return _bind(input, min_val, max_val)


def _bind_module(module: nn.Hardtanh, input: Any) -> Bound:
    return _bind(input, module.min_val, module.max_val)


def _clamp(input: torch.Tensor, *, min: Any = None, max: Any = None) -> torch.Tensor:
    return torch.clamp(input, min, max)


def _lower(b: Builder, call: LowerCall) -> Any:
    return lower_clip(b, call.operands[0], call.attrs["min"], call.attrs["max"])


def _run_float(attrs: Attrs, x: torch.Tensor, low: Any = None, high: Any = None) -> torch.Tensor:
    low, high = (None if bound is None else bound.item() for bound in (low, high))
    return torch.clamp(x, low, high)


def _convert(ctx: ConvertContext, node: FloatNode) -> Operand:
    return convert_clamp(ctx, node, bound_of(node, 1), bound_of(node, 2))


def _sample(rng: np.random.Generator) -> Sample:
    low, high = sorted(float(v) for v in rng.uniform(-2, 2, 2))
    return Sample(sample_unary(rng).shapes, {"min": low, "max": high})


register(
    OpSpec(
        name="clamp_scalar",
        family="activation",
        rule=Rule.INPUT_SCALE,
        roles=("input",),
        targets=(
            ModuleTarget(nn.Hardtanh, _bind_module),
            FunctionTarget(F.hardtanh, _bind_hardtanh),
            FunctionTarget(F.hardtanh_, _bind_hardtanh),
        ),
        float_kernel=_clamp,
        lower=_lower,
        kernels=(HbirKernel("Clip", run_float=_run_float, convert=_convert),),
        march=limits.NOT_BERNOULLI,
        flops=output_elements,
        sample=_sample,
        doc="input between two numbers; what clamp becomes with numbers as bounds",
    )
)
