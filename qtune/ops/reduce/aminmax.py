"""aminmax: the smallest and the largest value, made of amin and amax."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from qtune.ops.elementwise import limits
from qtune.ops.elementwise.binding import input_elements
from qtune.ops.kernel import Builder, LowerCall
from qtune.ops.reduce.reducing import axes_of
from qtune.ops.registry import register
from qtune.ops.spec import (
    Bound,
    DecomposeBuilder,
    FunctionTarget,
    MethodTarget,
    OpSpec,
    Rule,
    Sample,
)


def _bind(input: Any, *, dim: int | None = None, keepdim: bool = False) -> Bound:
    return Bound((input,), {"dim": dim, "keepdim": bool(keepdim)})


def _aminmax(
    input: torch.Tensor, *, dim: int | None = None, keepdim: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    low, high = torch.aminmax(input, dim=dim, keepdim=keepdim)
    return low, high


def _dims(attrs: Any) -> tuple[int, ...] | None:
    return None if attrs["dim"] is None else (int(attrs["dim"]),)


def _lower(b: Builder, call: LowerCall) -> Any:
    axes = axes_of(_dims(call.attrs), len(call.input_shapes[0] or ()))
    inputs = [call.operands[0], b.constant(np.array(axes), "axes")]
    keepdims = {"keepdims": int(call.attrs["keepdim"])}
    return tuple(b.add(op_type, inputs, keepdims) for op_type in ("ReduceMin", "ReduceMax"))


def _decompose(builder: DecomposeBuilder, bound: Bound) -> Any:
    along = {"dim": _dims(bound.attrs), "keepdim": bound.attrs["keepdim"]}
    return tuple(builder.call(op, bound.tensors, along, part=op) for op in ("amin", "amax"))


def _sample(rng: np.random.Generator) -> Sample:
    shape = tuple(int(v) for v in rng.integers(1, 7, 3))
    return Sample((shape,), {"dim": int(rng.integers(-3, 3)), "keepdim": bool(rng.integers(2))})


register(
    OpSpec(
        name="aminmax",
        family="reduce",
        rule=Rule.DECOMPOSED,
        roles=("input",),
        targets=(FunctionTarget(torch.aminmax, _bind), MethodTarget("aminmax", _bind)),
        float_kernel=_aminmax,
        lower=_lower,
        decompose=_decompose,
        march=limits.EXTREMUM,
        flops=input_elements,
        sample=_sample,
        doc="smallest and largest value, along a dimension or of all elements",
    )
)
