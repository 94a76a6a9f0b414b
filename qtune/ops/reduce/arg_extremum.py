"""What argmax and argmin share: the index of an extremum, int64, no scale."""

from __future__ import annotations

from collections.abc import Callable
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
from qtune.ops.spec import Bound, FunctionTarget, MethodTarget, OpSpec, Rule, Sample

Array = np.ndarray[Any, Any]


def _bind(input: Any, dim: int | None = None, keepdim: bool = False) -> Bound:
    return Bound((input,), {"dim": dim, "keepdim": bool(keepdim)})


def arg_extremum(
    name: str,
    onnx_op: str,
    function: Callable[..., torch.Tensor],
    numpy_function: Callable[..., Array],
    doc: str,
) -> OpSpec:
    """The operator ``function(input, dim, keepdim)``; ``dim`` None: over the flattened tensor."""
    integer_op = f"Q{onnx_op}"

    def float_kernel(
        input: torch.Tensor, *, dim: int | None = None, keepdim: bool = False
    ) -> torch.Tensor:
        return function(input, dim, keepdim)

    def lower(b: Builder, call: LowerCall) -> Any:
        x, dim, keepdim = call.operands[0], call.attrs["dim"], call.attrs["keepdim"]
        rank = len(call.input_shapes[0] or ())
        if dim is not None:
            return b.add(onnx_op, [x], {"axis": int(dim) % max(rank, 1), "keepdims": int(keepdim)})
        flat = b.add("Reshape", [x, b.constant(np.array([-1]), "flat")])
        index = b.add(onnx_op, [flat], {"axis": 0, "keepdims": 0})
        if not keepdim:
            return index
        return b.add("Reshape", [index, b.constant(np.ones(rank, dtype=np.int64), "shape")])

    def run_float(attrs: Attrs, x: torch.Tensor) -> torch.Tensor:
        return function(x, int(attrs.get("axis", 0)), bool(attrs.get("keepdims", 1)))

    def convert(ctx: ConvertContext, node: FloatNode) -> Operand:
        if is_plain(node):
            return copy_node(ctx, node, masks=True)
        x = codes(ctx, node, 0)
        attrs = {"axis": node.attrs.get("axis", 0), "keepdims": node.attrs.get("keepdims", 1)}
        return PlainValue(ctx.add(integer_op, [x.value], attrs, domain="qtune"))

    def reference(attrs: Attrs, x: Array) -> Array:
        found = numpy_function(x, axis=attrs["axis"], keepdims=bool(attrs["keepdims"]))
        return np.asarray(found)

    def fast(node: KernelNode) -> FastKernel:
        return lambda x: run_float(node.attrs, x)

    return OpSpec(
        name=name,
        family="reduce",
        rule=Rule.NO_SCALE,
        roles=("input",),
        targets=(FunctionTarget(function, _bind), MethodTarget(name, _bind)),
        float_kernel=float_kernel,
        lower=lower,
        kernels=(
            HbirKernel(onnx_op, run_float=run_float, convert=convert),
            HbirKernel(integer_op, "qtune", reference=reference, fast=fast),
        ),
        march=limits.ARGMAX,
        flops=input_elements,
        sample=_sample,
        doc=doc,
    )


def _sample(rng: np.random.Generator) -> Sample:
    shape = tuple(int(v) for v in rng.integers(1, 7, 3))
    dim = None if not rng.integers(4) else int(rng.integers(-3, 3))
    return Sample((shape,), {"dim": dim, "keepdim": bool(rng.integers(2))})
