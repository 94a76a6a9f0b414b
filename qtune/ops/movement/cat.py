"""cat: tensors one behind the other; every input is rescaled to the result's own scale."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
from qtune.ops.movement.merging import merge
from qtune.ops.movement.moving import axis_of, held_constant, no_flops, rank_of
from qtune.ops.registry import register
from qtune.ops.spec import Bound, FunctionTarget, MarchRule, OpSpec, Rule, Sample


def bind_sequence(tensors: Any, dim: Any, name: str) -> Bound:
    """A call that takes a sequence of tensors as its first argument."""
    if not isinstance(tensors, Sequence):
        raise NotImplementedError(f"{name} of a sequence that is the result of another operator")
    return Bound(tuple(tensors), {"dim": dim})


def _bind(tensors: Any, dim: Any = 0, **kwargs: Any) -> Bound:
    return bind_sequence(tensors, kwargs.get("axis", dim), "cat")


def _bind_stacked(name: str, dim: int, least: int) -> Callable[..., Bound]:
    """``hstack`` and its kin: a cat along ``dim`` of tensors of at least ``least`` dimensions."""

    def bind(tensors: Any) -> Bound:
        bound = bind_sequence(tensors, dim, name)
        ranks = {rank_of(tensor) for tensor in bound.tensors}
        if name == "hstack" and ranks == {1}:
            return Bound(bound.tensors, {"dim": 0})
        if any(rank is not None and rank < least for rank in ranks):
            raise NotImplementedError(
                f"{name} of tensors of fewer than {least} dimensions; use torch.stack"
            )
        return bound

    return bind


def float_kernel(*tensors: torch.Tensor, dim: int) -> torch.Tensor:
    """``tensors`` one behind the other along ``dim``."""
    return torch.cat(tensors, dim)


def emit_concat(b: Builder, values: Sequence[Any], axis: int) -> Any:
    """A Concat node; numbers among ``values`` can't occur, tensors only."""
    return b.add("Concat", list(values), {"axis": axis})


def _lower(b: Builder, call: LowerCall) -> Any:
    rank = len(call.input_shapes[0] or ())
    return emit_concat(b, call.operands, axis_of(int(call.attrs["dim"]), rank))


def _run_float(attrs: Attrs, *tensors: torch.Tensor) -> torch.Tensor:
    return torch.cat(tensors, int(attrs["axis"]))


def _convert(ctx: ConvertContext, node: FloatNode) -> Operand:
    def build(ctx: ConvertContext, values: list[Value]) -> Value:
        return ctx.add("Concat", values, dict(node.attrs))

    return merge(ctx, node, node.operands, build)


def _reference(attrs: Attrs, *arrays: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.concatenate(arrays, axis=int(attrs["axis"]))


def _fast(node: KernelNode) -> FastKernel:
    axis, count = int(node.attrs["axis"]), len(node.input_dtypes)
    constants = {i: held_constant(a, node.output_dtypes[0]) for i, a in node.constants.items()}

    def kernel(*inputs: torch.Tensor) -> torch.Tensor:
        given = iter(inputs)
        parts = [constants[i] if i in constants else next(given) for i in range(count)]
        return channels_last(torch.cat(parts, axis))

    return kernel


def _check_nash(attrs: Attrs, inputs: Sequence[Any], output: Any) -> str | None:
    if len(inputs) > 1024:
        return f"{len(inputs)} inputs; at most 1024"
    if any(size >= 131072 for size in output):
        return f"output shape {tuple(output)}; sizes below 131072 are possible"
    return None


def _check_bayes(attrs: Attrs, inputs: Sequence[Any], output: Any) -> str | None:
    if not 2 <= len(inputs) <= 1024:
        return f"{len(inputs)} inputs; 2 to 1024 are possible"
    if output[0] > 4096 or any(size > 65536 for size in output[1:]):
        return f"output shape {tuple(output)}; N at most 4096, the others at most 65536"
    return None


MARCH = (
    MarchRule(("bernoulli",), ("qint8",), ("qint8",)),
    MarchRule(("bayes",), check=_check_bayes),
    MarchRule(("nash",), check=_check_nash),
)
"""Limits of Concat (toolchain_facts sections 7.1 and 7.2)."""


def _sample(rng: np.random.Generator) -> Sample:
    shape = [int(v) for v in rng.integers(1, 5, 4)]
    dim = int(rng.integers(-4, 4))
    shapes = []
    for _ in range(int(rng.integers(1, 5))):
        shape[dim] = int(rng.integers(1, 5))
        shapes.append(tuple(shape))
    return Sample(tuple(shapes), {"dim": dim})


register(
    OpSpec(
        name="cat",
        family="movement",
        rule=Rule.OWN_SCALE,
        roles=("*tensors",),
        targets=(
            FunctionTarget(torch.cat, _bind),
            FunctionTarget(torch.concat, _bind),
            FunctionTarget(torch.concatenate, _bind),
            FunctionTarget(torch.hstack, _bind_stacked("hstack", 1, 2)),
            FunctionTarget(torch.vstack, _bind_stacked("vstack", 0, 2)),
            FunctionTarget(torch.row_stack, _bind_stacked("row_stack", 0, 2)),
            FunctionTarget(torch.dstack, _bind_stacked("dstack", 2, 3)),
            FunctionTarget(torch.column_stack, _bind_stacked("column_stack", 1, 2)),
        ),
        float_kernel=float_kernel,
        lower=_lower,
        kernels=(
            HbirKernel(
                "Concat", run_float=_run_float, convert=_convert, reference=_reference, fast=_fast
            ),
        ),
        march=MARCH,
        flops=no_flops,
        sample=_sample,
        doc="tensors one behind the other",
    )
)
