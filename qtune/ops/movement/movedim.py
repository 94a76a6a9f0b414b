"""movedim: dimensions moved to other places; keeps the input's scale."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from qtune.ops.kernel import Builder, LowerCall
from qtune.ops.movement.moving import axis_of, no_flops
from qtune.ops.registry import register
from qtune.ops.spec import Bound, FunctionTarget, MethodTarget, OpSpec, Rule, Sample


def _bind(input: Any, source: Any, destination: Any) -> Bound:
    return Bound((input,), {"source": _tuple(source), "destination": _tuple(destination)})


def _tuple(dims: Any) -> tuple[Any, ...]:
    return tuple(dims) if isinstance(dims, Sequence) else (dims,)


def _lower(b: Builder, call: LowerCall) -> Any:
    rank = len(call.input_shapes[0] or ())
    source, destination = (
        [axis_of(int(d), rank) for d in call.attrs[key]] for key in ("source", "destination")
    )
    rest = iter(i for i in range(rank) if i not in source)
    moved = dict(zip(destination, source, strict=True))
    order = [moved[i] if i in moved else next(rest) for i in range(rank)]
    return b.add("Transpose", [call.operands[0]], {"perm": order})


def _sample(rng: np.random.Generator) -> Sample:
    count = int(rng.integers(1, 4))
    source, destination = (tuple(int(v) for v in rng.permutation(4)[:count]) for _ in range(2))
    shape = tuple(int(v) for v in rng.integers(1, 5, 4))
    return Sample((shape,), {"source": source, "destination": destination})


register(
    OpSpec(
        name="movedim",
        family="movement",
        rule=Rule.INPUT_SCALE,
        roles=("input",),
        targets=(
            FunctionTarget(torch.movedim, _bind),
            FunctionTarget(torch.moveaxis, _bind),
            MethodTarget("movedim", _bind),
            MethodTarget("moveaxis", _bind),
        ),
        float_kernel=torch.movedim,
        lower=_lower,
        flops=no_flops,
        sample=_sample,
        doc="dimensions moved to other places",
    )
)
