"""transpose, swapaxes, t, .T, .mT: two dimensions change places; keeps the input's scale."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from qtune.ops.kernel import Builder, LowerCall
from qtune.ops.movement.moving import axis_of, no_flops, rank_of
from qtune.ops.registry import register
from qtune.ops.spec import Bound, FunctionTarget, MethodTarget, OpSpec, Rule, Sample


def _bind(input: Any, dim0: Any, dim1: Any) -> Bound:
    return Bound((input,), {"dim0": dim0, "dim1": dim1})


def _bind_axes(input: Any, axis0: Any, axis1: Any) -> Bound:
    return _bind(input, axis0, axis1)


def _bind_t(input: Any) -> Bound:
    return _bind(input, 0, -1)


_ATTRIBUTES = {"T": (0, -1), "H": (0, -1), "mT": (-2, -1), "mH": (-2, -1)}


def _bind_attribute(input: Any, name: str, *default: Any) -> Bound:
    if name not in _ATTRIBUTES:
        raise NotImplementedError(f"the tensor attribute .{name} is no operator of the registry")
    if name == "T" and (rank_of(input) or 0) > 3:
        raise NotImplementedError(".T of more than 3 dimensions; use permute")
    return _bind(input, *_ATTRIBUTES[name])


def _lower(b: Builder, call: LowerCall) -> Any:
    rank = len(call.input_shapes[0] or ())
    order = list(range(rank))
    first, second = (axis_of(int(call.attrs[key]), rank) for key in ("dim0", "dim1"))
    order[first], order[second] = order[second], order[first]
    return b.add("Transpose", [call.operands[0]], {"perm": order})


def _sample(rng: np.random.Generator) -> Sample:
    dim0, dim1 = (int(v) for v in rng.integers(-4, 4, 2))
    shape = tuple(int(v) for v in rng.integers(1, 5, 4))
    return Sample((shape,), {"dim0": dim0, "dim1": dim1})


register(
    OpSpec(
        name="transpose",
        family="movement",
        rule=Rule.INPUT_SCALE,
        roles=("input",),
        targets=(
            FunctionTarget(torch.transpose, _bind),
            FunctionTarget(torch.swapaxes, _bind_axes),
            FunctionTarget(torch.swapdims, _bind),
            FunctionTarget(torch.t, _bind_t),
            FunctionTarget(torch.adjoint, lambda input: _bind(input, -2, -1)),
            FunctionTarget(getattr, _bind_attribute),
            MethodTarget("transpose", _bind),
            MethodTarget("transpose_", _bind),
            MethodTarget("swapaxes", _bind_axes),
            MethodTarget("swapaxes_", _bind_axes),
            MethodTarget("swapdims", _bind),
            MethodTarget("swapdims_", _bind),
            MethodTarget("adjoint", lambda input: _bind(input, -2, -1)),
            MethodTarget("t", _bind_t),
            MethodTarget("t_", _bind_t),
        ),
        float_kernel=torch.transpose,
        lower=_lower,
        flops=no_flops,
        sample=_sample,
        doc="two dimensions change places",
    )
)
