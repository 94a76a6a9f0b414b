"""What tril and triu share: one triangle of each matrix kept, the rest 0; the scale is kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from qtune.arith_fast.held import channels_last, offset
from qtune.errors import ConvertError
from qtune.ops.elementwise.operands import codes, copy_node, is_plain
from qtune.ops.kernel import (
    Attrs,
    Builder,
    ConvertContext,
    FastKernel,
    FloatConst,
    FloatNode,
    HbirKernel,
    KernelNode,
    LowerCall,
    Operand,
)
from qtune.ops.movement.moving import no_flops
from qtune.ops.quant.codes import onnx_type, output_dtype
from qtune.ops.spec import Bound, FunctionTarget, MarchRule, MethodTarget, OpSpec, Rule, Sample

Array = np.ndarray[Any, Any]


def _bind(input: Any, diagonal: Any = 0) -> Bound:
    return Bound((input,), {"diagonal": int(diagonal)})


def triangle(
    name: str, function: Callable[..., torch.Tensor], kernels: tuple[HbirKernel, ...], doc: str
) -> OpSpec:
    """``torch.tril`` or ``torch.triu``; one of both owns the kernels of Trilu."""
    upper = int(name == "triu")

    def lower(b: Builder, call: LowerCall) -> Any:
        k = b.constant(np.array(call.attrs["diagonal"], dtype=np.int64), "k")
        return b.add("Trilu", [call.operands[0], k], {"upper": upper})

    return OpSpec(
        name=name,
        family="movement",
        rule=Rule.INPUT_SCALE,
        roles=("input",),
        targets=(
            FunctionTarget(function, _bind),
            MethodTarget(name, _bind),
            MethodTarget(f"{name}_", _bind),
        ),
        float_kernel=function,
        lower=lower,
        kernels=kernels,
        march=(MarchRule(("bayes", "nash")),),
        fills=lambda attrs: 0.0,
        flops=no_flops,
        sample=_sample,
        doc=doc,
    )


def _run(x: torch.Tensor, upper: Any, k: int) -> torch.Tensor:
    return torch.triu(x, k) if upper else torch.tril(x, k)


def _run_float(attrs: Attrs, x: torch.Tensor, k: torch.Tensor | None = None) -> torch.Tensor:
    return _run(x, attrs.get("upper", 1), 0 if k is None else int(k))


def _convert(ctx: ConvertContext, node: FloatNode) -> Operand:
    if is_plain(node):
        return copy_node(ctx, node)
    k = node.operands[1] if len(node.operands) > 1 else None
    if k is not None and not isinstance(k, FloatConst):
        raise ConvertError(f"{node.name}: Trilu needs its diagonal as a constant of the file")
    x = codes(ctx, node, 0)
    attrs = {
        "upper": node.attrs.get("upper", 1),
        "k": 0 if k is None else int(k.data.reshape(())),
        "to": onnx_type(x.dtype),
    }
    value = ctx.add("QTrilu", [x.value], attrs, domain="qtune")
    low = None if x.code_min is None else min(x.code_min, 0)
    high = None if x.code_max is None else max(x.code_max, 0)
    return replace(x, value=value, code_min=low, code_max=high)


def _reference(attrs: Attrs, x: Array) -> Array:
    function = np.triu if attrs["upper"] else np.tril
    return np.asarray(function(x, int(attrs["k"])))


def _fast(node: KernelNode) -> FastKernel:
    upper, k = node.attrs["upper"], int(node.attrs["k"])
    zero = offset(output_dtype(node))

    def kernel(x: torch.Tensor) -> torch.Tensor:
        kept = _run(torch.ones(x.shape[-2:], dtype=torch.bool), upper, k)
        return channels_last(torch.where(kept, x, torch.tensor(zero, dtype=x.dtype)))

    return kernel


KERNELS = (
    HbirKernel("Trilu", run_float=_run_float, convert=_convert),
    HbirKernel("QTrilu", "qtune", reference=_reference, fast=_fast),
)
"""The kernels of both; tril registers them."""


def _sample(rng: np.random.Generator) -> Sample:
    shape = tuple(int(v) for v in rng.integers(1, 6, 3))
    return Sample((shape,), {"diagonal": int(rng.integers(-3, 4))})
