"""repeat, tile: the whole tensor several times along each dimension; keeps the input's scale."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from qtune.ops.kernel import Attrs, Builder, LowerCall
from qtune.ops.movement.moving import int64, movement_kernel, no_flops, sizes
from qtune.ops.movement.reshape import emit_reshape
from qtune.ops.registry import register
from qtune.ops.spec import Bound, FunctionTarget, MarchRule, MethodTarget, OpSpec, Rule, Sample


def _bind(input: Any, *repeats: Any, **kwargs: Any) -> Bound:
    return Bound((input,), {"repeats": sizes(repeats, "repeats", kwargs)})


def _bind_tile(input: Any, *dims: Any, **kwargs: Any) -> Bound:
    return Bound((input,), {"repeats": sizes(dims, "dims", kwargs)})


def float_kernel(x: torch.Tensor, *, repeats: tuple[int, ...]) -> torch.Tensor:
    """``x`` several times; the last dimension has the last number."""
    return x.tile(repeats)


def _lower(b: Builder, call: LowerCall) -> Any:
    shape, x = call.input_shapes[0] or (), call.operands[0]
    repeats = [int(count) for count in call.attrs["repeats"]]
    if len(repeats) > len(shape):
        x = emit_reshape(b, x, [1] * (len(repeats) - len(shape)) + list(shape))
    repeats = [1] * (len(shape) - len(repeats)) + repeats
    return b.add("Tile", [x, b.constant(int64(repeats), "repeats")])


def _apply(attrs: Attrs, x: torch.Tensor, repeats: list[int]) -> torch.Tensor:
    return x.repeat(repeats)


def _reference(attrs: Attrs, x: np.ndarray[Any, Any], repeats: Any) -> np.ndarray[Any, Any]:
    return np.tile(x, tuple(int(count) for count in repeats))


def _sample(rng: np.random.Generator) -> Sample:
    shape = tuple(int(v) for v in rng.integers(1, 4, 3))
    repeats = tuple(int(v) for v in rng.integers(1, 4, int(rng.integers(1, 5))))
    return Sample((shape,), {"repeats": repeats})


register(
    OpSpec(
        name="repeat",
        family="movement",
        rule=Rule.INPUT_SCALE,
        roles=("input",),
        targets=(
            FunctionTarget(torch.tile, _bind_tile),
            MethodTarget("repeat", _bind),
            MethodTarget("tile", _bind_tile),
        ),
        float_kernel=float_kernel,
        lower=_lower,
        kernels=(movement_kernel("Tile", _apply, _reference),),
        march=(MarchRule(("bayes", "nash")),),
        flops=no_flops,
        sample=_sample,
        doc="the whole tensor several times along each dimension",
    )
)
