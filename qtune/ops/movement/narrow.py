"""narrow: a number of neighbours along a dimension; keeps the input's scale."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from qtune.ops.kernel import Builder, ExampleSize, LowerCall
from qtune.ops.movement.getitem import emit_slice
from qtune.ops.movement.indexing import plan_index
from qtune.ops.movement.moving import axis_of, is_tensor, no_flops
from qtune.ops.registry import register
from qtune.ops.spec import Bound, FunctionTarget, MethodTarget, OpSpec, Rule, Sample


def _bind(input: Any, dim: Any, start: Any, length: Any) -> Bound:
    if is_tensor(start) or is_tensor(length):
        raise NotImplementedError("narrow with a tensor as start or length; use index_select")
    return Bound((input,), {"dim": dim, "start": start, "length": length})


def float_kernel(x: torch.Tensor, *, dim: int, start: int, length: int) -> torch.Tensor:
    """``x[start : start + length]`` along ``dim``."""
    return torch.narrow(x, dim, start, length)


def _lower(b: Builder, call: LowerCall) -> Any:
    shape = call.input_shapes[0] or ()
    axis = axis_of(int(call.attrs["dim"]), len(shape))
    start, length = call.attrs["start"], call.attrs["length"]
    first = int(start) + shape[axis] if start < 0 else int(start)
    stop: int = first + int(length)
    if any(isinstance(number, ExampleSize) for number in (start, length)):
        stop = ExampleSize(stop)
    plan = plan_index((slice(None),) * axis + (slice(first, stop),), shape)
    return emit_slice(b, call.operands[0], plan) if plan.slices else _same(b, call)


def _same(b: Builder, call: LowerCall) -> Any:
    return b.add("Identity", [call.operands[0]])


def _sample(rng: np.random.Generator) -> Sample:
    shape = tuple(int(v) for v in rng.integers(1, 6, 3))
    dim = int(rng.integers(-3, 3))
    start = int(rng.integers(0, shape[dim]))
    length = int(rng.integers(1, shape[dim] - start + 1))
    return Sample((shape,), {"dim": dim, "start": start, "length": length})


register(
    OpSpec(
        name="narrow",
        family="movement",
        rule=Rule.INPUT_SCALE,
        roles=("input",),
        targets=(FunctionTarget(torch.narrow, _bind), MethodTarget("narrow", _bind)),
        float_kernel=float_kernel,
        lower=_lower,
        flops=no_flops,
        sample=_sample,
        doc="a number of neighbours along a dimension",
    )
)
