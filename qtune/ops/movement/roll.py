"""roll: elements shifted around along dimensions; keeps the input's scale."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import torch

from qtune.ops.kernel import Builder, LowerCall
from qtune.ops.movement.moving import axis_of, int64, no_flops
from qtune.ops.movement.reshape import emit_reshape
from qtune.ops.registry import register
from qtune.ops.spec import Bound, FunctionTarget, MarchRule, MethodTarget, OpSpec, Rule, Sample


def _bind(input: Any, shifts: Any, dims: Any = ()) -> Bound:
    shifts, dims = (tuple(v) if isinstance(v, Sequence) else (v,) for v in (shifts, dims))
    dims = () if dims == (None,) else dims
    return Bound((input,), {"shifts": shifts, "dims": dims})


def float_kernel(
    x: torch.Tensor, *, shifts: tuple[int, ...], dims: tuple[int, ...]
) -> torch.Tensor:
    """``x`` shifted around along ``dims``; without any the flattened tensor."""
    return torch.roll(x, shifts, dims)


def _lower(b: Builder, call: LowerCall) -> Any:
    shape, x = call.input_shapes[0] or (), call.operands[0]
    if not call.attrs["dims"]:
        (shift,) = call.attrs["shifts"]
        order = int64(np.roll(np.arange(prod(shape)), int(shift)).tolist())
        flat = emit_reshape(b, x, [-1], "flat")
        rolled = b.add("Gather", [flat, b.constant(order, "indices")], {"axis": 0})
        return emit_reshape(b, rolled, list(shape))
    for shift, dim in zip(call.attrs["shifts"], call.attrs["dims"], strict=True):
        axis = axis_of(int(dim), len(shape))
        order = int64(np.roll(np.arange(shape[axis]), int(shift)).tolist())
        x = b.add("Gather", [x, b.constant(order, "indices")], {"axis": axis})
    return x


def _sample(rng: np.random.Generator) -> Sample:
    shape = tuple(int(v) for v in rng.integers(1, 6, 4))
    count = int(rng.integers(1, 3))
    if not rng.integers(4):
        return Sample((shape,), {"shifts": (int(rng.integers(-7, 8)),), "dims": ()})
    dims = tuple(int(v) for v in rng.permutation(4)[:count])
    shifts = tuple(int(v) for v in rng.integers(-7, 8, count))
    return Sample((shape,), {"shifts": shifts, "dims": dims})


register(
    OpSpec(
        name="roll",
        family="movement",
        rule=Rule.INPUT_SCALE,
        roles=("input",),
        targets=(FunctionTarget(torch.roll, _bind), MethodTarget("roll", _bind)),
        float_kernel=float_kernel,
        lower=_lower,
        march=(MarchRule(("bayes", "nash")),),
        flops=no_flops,
        sample=_sample,
        doc="elements shifted around along dimensions",
    )
)
