"""argmax: index of the largest value, the lowest one in a tie; int64, no scale."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from qtune.ops.elementwise import limits
from qtune.ops.elementwise.binding import input_elements
from qtune.ops.elementwise.operands import codes, copy_node, is_plain
from qtune.ops.kernel import (
    Attrs,
    Builder,
    ConvertContext,
    FastKernel,
    FloatNode,
    HbirKernel,
    KernelNode,
    LowerCall,
    Operand,
    PlainValue,
)
from qtune.ops.registry import register
from qtune.ops.spec import Bound, FunctionTarget, MethodTarget, OpSpec, Rule, Sample

Array = np.ndarray[Any, Any]


def _bind(input: Any, dim: int | None = None, keepdim: bool = False) -> Bound:
    return Bound((input,), {"dim": dim, "keepdim": bool(keepdim)})


def _argmax(input: torch.Tensor, *, dim: int | None = None, keepdim: bool = False) -> torch.Tensor:
    return torch.argmax(input, dim, keepdim)


def _lower(b: Builder, call: LowerCall) -> Any:
    x, dim, keepdim = call.operands[0], call.attrs["dim"], call.attrs["keepdim"]
    rank = len(call.input_shapes[0] or ())
    if dim is not None:
        return b.add("ArgMax", [x], {"axis": int(dim) % max(rank, 1), "keepdims": int(keepdim)})
    if keepdim:
        raise NotImplementedError(f"{call.name}: argmax without dim but with keepdim is not done")
    flat = b.add("Reshape", [x, b.constant(np.array([-1]), "flat")])
    return b.add("ArgMax", [flat], {"axis": 0, "keepdims": 0})


def _run_float(attrs: Attrs, x: torch.Tensor) -> torch.Tensor:
    return torch.argmax(x, attrs["axis"], bool(attrs["keepdims"]))


def _convert(ctx: ConvertContext, node: FloatNode) -> Operand:
    if is_plain(node):
        return copy_node(ctx, node, masks=True)
    x = codes(ctx, node, 0)
    attrs = {"axis": node.attrs["axis"], "keepdims": node.attrs["keepdims"]}
    return PlainValue(ctx.add("QArgMax", [x.value], attrs, domain="qtune"))


def _reference(attrs: Attrs, x: Array) -> Array:
    return np.asarray(np.argmax(x, axis=attrs["axis"], keepdims=bool(attrs["keepdims"])))


def _fast(node: KernelNode) -> FastKernel:
    return lambda x: _run_float(node.attrs, x)


def _sample(rng: np.random.Generator) -> Sample:
    shape = tuple(int(v) for v in rng.integers(1, 7, 3))
    return Sample((shape,), {"dim": int(rng.integers(-3, 3)), "keepdim": bool(rng.integers(2))})


register(
    OpSpec(
        name="argmax",
        family="reduce",
        rule=Rule.NO_SCALE,
        roles=("input",),
        targets=(FunctionTarget(torch.argmax, _bind), MethodTarget("argmax", _bind)),
        float_kernel=_argmax,
        lower=_lower,
        kernels=(
            HbirKernel("ArgMax", run_float=_run_float, convert=_convert),
            HbirKernel("QArgMax", "qtune", reference=_reference, fast=_fast),
        ),
        march=limits.ARGMAX,
        flops=input_elements,
        sample=_sample,
        doc="index of the largest value, the lowest in a tie",
    )
)
