"""tensor_split, hsplit, vsplit, dsplit: a tensor cut at places; each piece keeps the scale."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from qtune.ops.kernel import Builder, LowerCall
from qtune.ops.movement.moving import axis_of, is_tensor, no_flops, rank_of
from qtune.ops.movement.split import emit_split
from qtune.ops.registry import register
from qtune.ops.spec import Bound, FunctionTarget, MethodTarget, OpSpec, Rule, Sample


def _bind(
    input: Any,
    indices_or_sections: Any = None,
    dim: Any = 0,
    *,
    sections: Any = None,
    indices: Any = None,
    tensor_indices_or_sections: Any = None,
) -> Bound:
    given = (indices_or_sections, sections, indices, tensor_indices_or_sections)
    places = next((value for value in given if value is not None), None)
    if is_tensor(places):
        raise NotImplementedError("tensor_split at places that a tensor holds; use a list of ints")
    cut = tuple(places) if isinstance(places, Sequence) else places
    return Bound((input,), {"sections": cut, "dim": dim})


def _bind_along(dim: int) -> Callable[..., Bound]:
    """``hsplit``, ``vsplit``, ``dsplit``."""

    def bind(input: Any, indices_or_sections: Any = None, **kwargs: Any) -> Bound:
        along = 0 if dim == 1 and rank_of(input) == 1 else dim
        return _bind(input, indices_or_sections, along, **kwargs)

    return bind


def float_kernel(x: torch.Tensor, *, sections: Any, dim: int) -> tuple[torch.Tensor, ...]:
    """A number of nearly equal pieces, or pieces between the places in ``sections``."""
    return tuple(torch.tensor_split(x, sections, dim=dim))


def _lower(b: Builder, call: LowerCall) -> Any:
    shape, sections = call.input_shapes[0] or (1,), call.attrs["sections"]
    axis = axis_of(int(call.attrs["dim"]), len(shape))
    size = shape[axis]
    if not isinstance(sections, tuple):
        each, more = divmod(size, int(sections))
        parts = [each + (place < more) for place in range(int(sections))]
        return emit_split(b, call.operands[0], parts, axis)
    ends = [slice(None, int(place)).indices(size)[1] for place in sections]
    parts = [b - a for a, b in pairwise([0, *ends, size])]
    if min(parts) < 0:
        raise NotImplementedError(f"{call.name}: tensor_split at places that overlap: {sections}")
    return emit_split(b, call.operands[0], parts, axis)


def _sample(rng: np.random.Generator) -> Sample:
    shape = tuple(int(v) for v in rng.integers(3, 7, 3))
    sections = [int(rng.integers(1, 4)), (1, -1), (2,)][int(rng.integers(3))]
    return Sample((shape,), {"sections": sections, "dim": int(rng.integers(-3, 3))})


register(
    OpSpec(
        name="tensor_split",
        family="movement",
        rule=Rule.INPUT_SCALE,
        roles=("input",),
        targets=(
            FunctionTarget(torch.tensor_split, _bind),
            FunctionTarget(torch.hsplit, _bind_along(1)),
            FunctionTarget(torch.vsplit, _bind_along(0)),
            FunctionTarget(torch.dsplit, _bind_along(2)),
            MethodTarget("tensor_split", _bind),
            MethodTarget("hsplit", _bind_along(1)),
            MethodTarget("vsplit", _bind_along(0)),
            MethodTarget("dsplit", _bind_along(2)),
        ),
        float_kernel=float_kernel,
        lower=_lower,
        flops=no_flops,
        sample=_sample,
        doc="a tensor cut into a number of pieces or at given places",
    )
)
