"""permute: dimensions in another order; keeps the input's scale."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from qtune.ops.kernel import Attrs, Builder, LowerCall
from qtune.ops.movement.moving import axis_of, movement_kernel, no_flops, sizes
from qtune.ops.registry import register
from qtune.ops.spec import Bound, FunctionTarget, MethodTarget, OpSpec, Rule, Sample


def _bind(input: Any, *dims: Any, **kwargs: Any) -> Bound:
    return Bound((input,), {"dims": sizes(dims, "dims", kwargs)})


def float_kernel(x: torch.Tensor, *, dims: tuple[int, ...]) -> torch.Tensor:
    """``x`` with its dimensions in the order ``dims``."""
    return x.permute(dims)


def _lower(b: Builder, call: LowerCall) -> Any:
    rank = len(call.input_shapes[0] or ())
    order = [axis_of(int(d), rank) for d in call.attrs["dims"]]
    return b.add("Transpose", [call.operands[0]], {"perm": order})


def _order(attrs: Attrs, rank: int) -> tuple[int, ...]:
    return tuple(attrs.get("perm") or range(rank)[::-1])


def _apply(attrs: Attrs, x: torch.Tensor) -> torch.Tensor:
    return x.permute(_order(attrs, x.dim()))


def _reference(attrs: Attrs, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.transpose(x, _order(attrs, x.ndim))


def _sample(rng: np.random.Generator) -> Sample:
    rank = int(rng.integers(1, 6))
    order = tuple(int(v) for v in rng.permutation(rank))
    dims = [order, tuple(d - rank for d in order)][int(rng.integers(2))]
    return Sample((tuple(int(v) for v in rng.integers(1, 5, rank)),), {"dims": dims})


register(
    OpSpec(
        name="permute",
        family="movement",
        rule=Rule.INPUT_SCALE,
        roles=("input",),
        targets=(
            FunctionTarget(torch.permute, _bind),
            MethodTarget("permute", _bind),
        ),
        float_kernel=float_kernel,
        lower=_lower,
        kernels=(movement_kernel("Transpose", _apply, _reference),),
        flops=no_flops,
        sample=_sample,
        doc="dimensions in another order",
    )
)
