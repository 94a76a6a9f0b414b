"""unflatten: one dimension split in several; keeps the input's scale."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from qtune.ops.kernel import Builder, LowerCall
from qtune.ops.movement.moving import axis_of, no_flops
from qtune.ops.movement.reshape import emit_reshape
from qtune.ops.registry import register
from qtune.ops.spec import Bound, FunctionTarget, MethodTarget, ModuleTarget, OpSpec, Rule, Sample


def _bind(input: Any, dim: Any, sizes: Any) -> Bound:
    if isinstance(dim, str):
        raise NotImplementedError(f"unflatten by the name of a dimension ({dim!r}); use its number")
    return Bound((input,), {"dim": dim, "sizes": tuple(sizes)})


def _bind_module(module: nn.Unflatten, input: Any) -> Bound:
    return _bind(input, module.dim, module.unflattened_size)


def float_kernel(x: torch.Tensor, *, dim: int, sizes: tuple[int, ...]) -> torch.Tensor:
    """``x`` with dimension ``dim`` split into ``sizes``; one of them may be -1."""
    return torch.unflatten(x, dim, sizes)


def _lower(b: Builder, call: LowerCall) -> Any:
    shape = call.input_shapes[0] or (1,)
    dim = axis_of(call.attrs["dim"], len(shape))
    parts = [int(size) for size in call.attrs["sizes"]]
    return emit_reshape(b, call.operands[0], [0] * dim + parts + list(shape[dim + 1 :]))


def _sample(rng: np.random.Generator) -> Sample:
    dim = int(rng.integers(0, 3))
    shape = [int(v) for v in rng.integers(1, 5, 3)]
    a, b = (int(v) for v in rng.integers(1, 4, 2))
    shape[dim] = a * b
    sizes = [(a, b), (-1, b), (a, -1)][int(rng.integers(3))]
    return Sample((tuple(shape),), {"dim": dim, "sizes": sizes})


register(
    OpSpec(
        name="unflatten",
        family="movement",
        rule=Rule.INPUT_SCALE,
        roles=("input",),
        targets=(
            ModuleTarget(nn.Unflatten, _bind_module),
            FunctionTarget(torch.unflatten, _bind),
            MethodTarget("unflatten", _bind),
        ),
        float_kernel=float_kernel,
        lower=_lower,
        flops=no_flops,
        sample=_sample,
        doc="one dimension split in several",
    )
)
