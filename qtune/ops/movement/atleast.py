"""atleast_1d, atleast_2d, atleast_3d: dimensions of size 1 put in; keeps the input's scale."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from qtune.ops.kernel import Builder, LowerCall
from qtune.ops.movement.moving import int64, no_flops
from qtune.ops.registry import register
from qtune.ops.spec import Bound, FunctionTarget, OpSpec, Rule, Sample

_AXES: Mapping[int, Mapping[int, tuple[int, ...]]] = {
    1: {0: (0,)},
    2: {0: (0, 1), 1: (0,)},
    3: {0: (0, 1, 2), 1: (0, 2), 2: (2,)},
}
"""Per wanted number of dimensions: rank of the input -> places of the new ones in the result."""


def _bind(dims: int) -> Callable[..., Bound]:
    def bind(*tensors: Any) -> Bound:
        if len(tensors) != 1 or isinstance(tensors[0], tuple | list):
            raise NotImplementedError(
                f"atleast_{dims}d of several tensors at once; call it for each of them"
            )
        return Bound(tensors, {"dims": dims})

    return bind


def float_kernel(x: torch.Tensor, *, dims: int) -> torch.Tensor:
    """``x`` with at least ``dims`` dimensions."""
    for axis in _AXES[dims].get(x.dim(), ()):
        x = x.unsqueeze(axis)
    return x


def _lower(b: Builder, call: LowerCall) -> Any:
    axes = _AXES[call.attrs["dims"]].get(len(call.input_shapes[0] or ()), ())
    if not axes:
        return b.add("Identity", [call.operands[0]])
    return b.add("Unsqueeze", [call.operands[0], b.constant(int64(axes), "axes")])


def _sample(rng: np.random.Generator) -> Sample:
    shape = tuple(int(v) for v in rng.integers(1, 5, int(rng.integers(1, 5))))
    return Sample((shape,), {"dims": int(rng.integers(1, 4))})


register(
    OpSpec(
        name="atleast",
        family="movement",
        rule=Rule.INPUT_SCALE,
        roles=("input",),
        targets=(
            FunctionTarget(torch.atleast_1d, _bind(1)),
            FunctionTarget(torch.atleast_2d, _bind(2)),
            FunctionTarget(torch.atleast_3d, _bind(3)),
        ),
        float_kernel=float_kernel,
        lower=_lower,
        flops=no_flops,
        sample=_sample,
        doc="dimensions of size 1 put in up to a number of dimensions",
    )
)
