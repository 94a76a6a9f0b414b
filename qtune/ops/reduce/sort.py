"""sort: all values of a dimension in order, and their indices; keeps the input's scale."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from qtune.ops.elementwise import limits
from qtune.ops.elementwise.binding import input_elements
from qtune.ops.kernel import Builder, LowerCall
from qtune.ops.reduce.ordering import emit_top, ordered
from qtune.ops.registry import register
from qtune.ops.spec import Bound, FunctionTarget, MethodTarget, OpSpec, Rule, Sample


def bind_sort(input: Any, *args: Any, **kwargs: Any) -> Bound:
    """``sort(input, dim, descending)`` and ``sort(input, *, stable, dim, descending)``."""
    names = ("dim", "descending")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    dim, descending = given.get("dim", -1), given.get("descending", False)
    return Bound((input,), {"dim": int(dim), "descending": bool(descending)})


def _sort(input: torch.Tensor, *, dim: int, descending: bool) -> tuple[torch.Tensor, torch.Tensor]:
    return ordered(input, dim, descending)


def _lower(b: Builder, call: LowerCall) -> Any:
    return emit_top(b, call, None, call.attrs["descending"])


def sample_sort(rng: np.random.Generator) -> Sample:
    """A tensor of three dimensions sorted along one."""
    shape = tuple(int(v) for v in rng.integers(1, 9, 3))
    return Sample((shape,), {"dim": int(rng.integers(-3, 3)), "descending": bool(rng.integers(2))})


register(
    OpSpec(
        name="sort",
        family="reduce",
        rule=Rule.INPUT_SCALE,
        roles=("input",),
        targets=(FunctionTarget(torch.sort, bind_sort), MethodTarget("sort", bind_sort)),
        float_kernel=_sort,
        lower=_lower,
        march=limits.NOT_BERNOULLI,
        flops=input_elements,
        sample=sample_sort,
        doc="values of a dimension in order and their indices, stable",
    )
)
