"""topk: the k largest or smallest values in order, and their indices; keeps the input's scale."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from qtune.ops.elementwise import limits
from qtune.ops.elementwise.binding import input_elements
from qtune.ops.kernel import Builder, LowerCall
from qtune.ops.reduce.ordering import KERNELS, emit_top, ordered
from qtune.ops.registry import register
from qtune.ops.spec import Bound, FunctionTarget, MethodTarget, OpSpec, Rule, Sample


def _bind(input: Any, k: Any, dim: int = -1, largest: bool = True, sorted: bool = True) -> Bound:
    return Bound((input,), {"k": k, "dim": int(dim), "largest": bool(largest)})


def _topk(
    input: torch.Tensor, *, k: int, dim: int, largest: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """In order even where torch is asked for none (``sorted=False``)."""
    return ordered(input, dim, largest, int(k))


def _lower(b: Builder, call: LowerCall) -> Any:
    return emit_top(b, call, int(call.attrs["k"]), call.attrs["largest"])


def _sample(rng: np.random.Generator) -> Sample:
    shape = tuple(int(v) for v in rng.integers(1, 9, 3))
    dim = int(rng.integers(-3, 3))
    k = int(rng.integers(1, shape[dim] + 1))
    return Sample((shape,), {"k": k, "dim": dim, "largest": bool(rng.integers(2))})


register(
    OpSpec(
        name="topk",
        family="reduce",
        rule=Rule.INPUT_SCALE,
        roles=("input",),
        targets=(FunctionTarget(torch.topk, _bind), MethodTarget("topk", _bind)),
        float_kernel=_topk,
        lower=_lower,
        kernels=KERNELS,
        march=limits.NOT_BERNOULLI,
        flops=input_elements,
        sample=_sample,
        doc="the k largest or smallest values and their indices, the lowest index first in a tie",
    )
)
