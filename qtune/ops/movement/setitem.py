"""x[...] = value: a new tensor with one region replaced; both are rescaled to its own scale."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import torch

from qtune.arith_fast.held import channels_last
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
    Value,
)
from qtune.ops.movement.assigning import check_assignable, lower_chosen
from qtune.ops.movement.getitem import at_dim, random_index, slice_inputs
from qtune.ops.movement.indexing import (
    IndexPlan,
    canonical_index,
    numpy_region,
    plan_index,
    torch_index,
)
from qtune.ops.movement.merging import merge
from qtune.ops.movement.moving import held_constant, int64, no_flops, operand_value
from qtune.ops.registry import register
from qtune.ops.spec import Bound, FunctionTarget, MethodTarget, OpSpec, Rule, Sample

OP = "SetSlice"


def _bind(input: Any, index: Any, value: Any) -> Bound:
    items, tensors = canonical_index(index)
    check_assignable(index, items, tensors, value)
    return Bound((input, value, *tensors), {"index": items})


def _bind_index_copy(input: Any, dim: Any, index: Any, source: Any) -> Bound:
    return _bind(input, at_dim(dim, index), source)


def _bind_index_fill(input: Any, dim: Any, index: Any, value: Any) -> Bound:
    return _bind(input, at_dim(dim, index), value)


def _bind_index_put(input: Any, indices: Any, values: Any, accumulate: bool = False) -> Bound:
    if accumulate:
        raise NotImplementedError("index_put with accumulate=True has no integer form")
    return _bind(input, tuple(indices), values)


def _bind_slice_scatter(
    input: Any, src: Any, dim: Any = 0, start: Any = None, end: Any = None, step: Any = 1
) -> Bound:
    return _bind(input, at_dim(dim, slice(start, end, step)), src)


def _bind_select_scatter(input: Any, src: Any, dim: Any, index: Any) -> Bound:
    return _bind(input, at_dim(dim, index), src)


def float_kernel(
    x: torch.Tensor, value: Any, *indices: torch.Tensor, index: tuple[Any, ...]
) -> torch.Tensor:
    """A copy of ``x`` with ``x[index] = value``; ``indices`` are the tensors among the items."""
    result = x.clone()
    result[torch_index(index, indices)] = value
    return result


def _lower(b: Builder, call: LowerCall) -> Any:
    if any(isinstance(item, str | tuple) for item in call.attrs["index"]):
        return lower_chosen(b, call)
    x, value = call.operands
    plan = plan_index(call.attrs["index"], call.input_shapes[0] or ())
    if isinstance(value, int | float):
        value = b.constant(np.array(value, dtype=np.float32), "value")
    else:
        rank = len(call.input_shapes[0] or ())
        value = _align(b, value, len(call.input_shapes[1] or ()), plan, rank)
    return b.add(OP, [x, value, *slice_inputs(b, plan)], domain="qtune")


def _align(b: Builder, value: Value, value_rank: int, plan: IndexPlan, rank: int) -> Value:
    """``value`` with dimensions of size 1 where the index holds ints, so that it broadcasts."""
    kept = [axis for axis in range(rank) if axis not in plan.squeeze]
    if value_rank > len(kept):
        extra = b.constant(int64(range(value_rank - len(kept))), "axes")
        value, value_rank = b.add("Squeeze", [value, extra]), len(kept)
    first = kept[len(kept) - value_rank] if value_rank else rank
    axes = [axis - first for axis in plan.squeeze if axis > first]
    return b.add("Unsqueeze", [value, b.constant(int64(axes), "axes")]) if axes else value


def _run_float(attrs: Attrs, x: torch.Tensor, value: torch.Tensor, *region: Any) -> torch.Tensor:
    result = x.clone()
    result[numpy_region(tuple(x.shape), *(part.tolist() for part in region))] = value
    return result


def _convert(ctx: ConvertContext, node: FloatNode) -> Operand:
    x, value, *region = node.operands

    def build(ctx: ConvertContext, values: list[Value]) -> Value:
        given = [operand_value(ctx, node, part) for part in region]
        return ctx.add(OP, [*values, *given], dict(node.attrs), domain="qtune")

    return merge(ctx, node, (x, value), build)


def _reference(attrs: Attrs, x: np.ndarray[Any, Any], value: Any, *region: Any) -> Any:
    result = x.copy()
    result[numpy_region(x.shape, *region)] = value
    return result


def _fast(node: KernelNode) -> FastKernel:
    region = [node.constants[i].tolist() for i in (2, 3, 4, 5)]
    constants = {
        i: held_constant(array, node.output_dtypes[0])
        for i, array in node.constants.items()
        if i < 2
    }

    def kernel(*inputs: torch.Tensor) -> torch.Tensor:
        given = iter(inputs)
        x, value = (constants[i] if i in constants else next(given) for i in (0, 1))
        result = x.clone()
        result[numpy_region(tuple(x.shape), *region)] = value
        return channels_last(result)

    return kernel


def _sample(rng: np.random.Generator) -> Sample:
    size = int(rng.integers(2, 6))
    index = random_index(rng, size, 4)
    shape = tuple(torch.empty((size,) * 4)[torch_index(index)].shape)
    value = [shape, shape[1:], (1,) * len(shape)][int(rng.integers(3))]
    return Sample(((size,) * 4, value), {"index": index})


register(
    OpSpec(
        name="setitem",
        family="movement",
        rule=Rule.OWN_SCALE,
        roles=("input", "value", "*indices"),
        targets=(
            FunctionTarget(operator.setitem, _bind),
            FunctionTarget(torch.slice_scatter, _bind_slice_scatter),
            FunctionTarget(torch.select_scatter, _bind_select_scatter),
            FunctionTarget(torch.index_copy, _bind_index_copy),
            FunctionTarget(torch.index_fill, _bind_index_fill),
            FunctionTarget(torch.index_put, _bind_index_put),
            FunctionTarget(torch.index_put_, _bind_index_put),
            MethodTarget("__setitem__", _bind),
            MethodTarget("slice_scatter", _bind_slice_scatter),
            MethodTarget("select_scatter", _bind_select_scatter),
            MethodTarget("index_copy", _bind_index_copy),
            MethodTarget("index_copy_", _bind_index_copy),
            MethodTarget("index_fill", _bind_index_fill),
            MethodTarget("index_fill_", _bind_index_fill),
            MethodTarget("index_put", _bind_index_put),
            MethodTarget("index_put_", _bind_index_put),
        ),
        float_kernel=float_kernel,
        lower=_lower,
        kernels=(
            HbirKernel(
                OP,
                "qtune",
                run_float=_run_float,
                convert=_convert,
                reference=_reference,
                fast=_fast,
            ),
        ),
        flops=no_flops,
        sample=_sample,
        doc="one region of a tensor replaced, or what a mask or constant indices choose",
    )
)
