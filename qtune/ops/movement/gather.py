"""gather: one element per index along a dimension; keeps the input's scale."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from qtune.ops.kernel import Attrs, Builder, LowerCall
from qtune.ops.movement.index_select import MARCH
from qtune.ops.movement.moving import axis_of, movement_kernel, no_flops
from qtune.ops.registry import register
from qtune.ops.spec import Bound, FunctionTarget, MethodTarget, OpSpec, Rule, Sample


def _bind(input: Any, dim: Any, index: Any, *, sparse_grad: bool = False) -> Bound:
    return Bound((input, index), {"dim": int(dim)})


def float_kernel(x: torch.Tensor, index: torch.Tensor, *, dim: int) -> torch.Tensor:
    """``y[i][j] = x[index[i][j]][j]`` for dim 0; ``index``: int64 of the rank of ``x``."""
    return torch.gather(x, dim, index)


def _lower(b: Builder, call: LowerCall) -> Any:
    shape = call.input_shapes[0] or ()
    if not shape:
        return b.add("Identity", [call.operands[0]])
    attrs = {"axis": axis_of(call.attrs["dim"], len(shape))}
    return b.add("GatherElements", list(call.operands), attrs)


def _apply(attrs: Attrs, x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    axis = int(attrs.get("axis", 0))
    wide = index.long()
    return torch.gather(x, axis, torch.where(wide < 0, wide + x.shape[axis], wide))


def _reference(attrs: Attrs, x: np.ndarray[Any, Any], index: Any) -> np.ndarray[Any, Any]:
    axis = int(attrs.get("axis", 0)) % x.ndim
    index = np.asarray(index)
    region = tuple(
        slice(None) if dim == axis else slice(0, size) for dim, size in enumerate(index.shape)
    )
    return np.take_along_axis(x[region], index, axis=axis)


def _sample(rng: np.random.Generator) -> Sample:
    shape = tuple(int(v) for v in rng.integers(1, 5, 3))
    dim = int(rng.integers(-3, 3))
    chosen = [int(rng.integers(1, size + 1)) for size in shape]
    chosen[dim] = int(rng.integers(1, 6))
    return Sample((shape, tuple(chosen)), {"dim": dim}, indices={1: shape[dim]})


register(
    OpSpec(
        name="gather",
        family="movement",
        rule=Rule.INPUT_SCALE,
        roles=("input", "index"),
        targets=(FunctionTarget(torch.gather, _bind), MethodTarget("gather", _bind)),
        float_kernel=float_kernel,
        lower=_lower,
        kernels=(movement_kernel("GatherElements", _apply, _reference, index=True),),
        march=MARCH,
        flops=no_flops,
        sample=_sample,
        doc="one element per index along a dimension",
    )
)
