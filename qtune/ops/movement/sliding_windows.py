"""sliding_windows: ``Tensor.unfold``, windows along one dimension on a new last one."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from qtune.ops.kernel import Builder, LowerCall
from qtune.ops.movement.moving import axis_of, no_flops
from qtune.ops.registry import register
from qtune.ops.spec import Bound, MethodTarget, OpSpec, Rule, Sample


def _bind(input: Any, dimension: Any, size: Any, step: Any) -> Bound:
    return Bound((input,), {"dimension": dimension, "size": size, "step": step})


def float_kernel(x: torch.Tensor, *, dimension: int, size: int, step: int) -> torch.Tensor:
    """``x.unfold(dimension, size, step)``."""
    return x.unfold(dimension, size, step)


def _lower(b: Builder, call: LowerCall) -> Any:
    shape, attrs = call.input_shapes[0] or (), call.attrs
    rank = len(shape)
    axis, size, step = (
        axis_of(int(attrs["dimension"]), rank),
        int(attrs["size"]),
        int(attrs["step"]),
    )
    start = np.arange((shape[axis] - size) // step + 1, dtype=np.int64) * step
    index = start[:, None] + np.arange(size, dtype=np.int64)
    taken = b.add("Gather", [call.operands[0], b.constant(index, "index")], {"axis": axis})
    order = [*range(axis + 1), *range(axis + 2, rank + 1), axis + 1]
    return taken if axis == rank - 1 else b.add("Transpose", [taken], {"perm": order})


def _sample(rng: np.random.Generator) -> Sample:
    shape = tuple(int(v) for v in rng.integers(3, 7, 3))
    size, step = (int(v) for v in rng.integers(1, 4, 2))
    attrs = {"dimension": int(rng.integers(-3, 3)), "size": size, "step": step}
    return Sample((shape,), attrs)


register(
    OpSpec(
        name="sliding_windows",
        family="movement",
        rule=Rule.INPUT_SCALE,
        roles=("input",),
        targets=(MethodTarget("unfold", _bind),),
        float_kernel=float_kernel,
        lower=_lower,
        flops=no_flops,
        sample=_sample,
        doc="Tensor.unfold: windows along one dimension, on a new last one",
    )
)
