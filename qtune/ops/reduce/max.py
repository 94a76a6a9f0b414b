"""max: the three functions that torch calls so, made of amax, argmax and maximum."""

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


def _bind(input: Any, *args: Any, **kwargs: Any) -> Bound:
    """``max(input)``, ``max(input, dim, keepdim)`` or ``max(input, other)``."""
    if "dim" in kwargs or (args and isinstance(args[0], int)):
        return _bind_dim(input, *args, **kwargs)
    return _bind_other(input, *args, **kwargs)


def _bind_dim(input: Any, dim: int, keepdim: bool = False) -> Bound:
    return Bound((input, None), {"dim": int(dim), "keepdim": bool(keepdim)})


def _bind_other(input: Any, other: Any = None) -> Bound:
    return Bound((input, other), {"dim": None, "keepdim": False})


def _max(
    input: torch.Tensor, other: Any = None, *, dim: int | None = None, keepdim: bool = False
) -> Any:
    if dim is not None:
        return torch.max(input, dim, keepdim)
    return torch.max(input) if other is None else torch.max(input, other)


def _lower(b: Builder, call: LowerCall) -> Any:
    x, other = call.operands
    if other is not None:
        return b.add("Max", [x, other])
    dim, keepdims = call.attrs["dim"], {"keepdims": int(call.attrs["keepdim"])}
    axes = axes_of(None if dim is None else (dim,), len(call.input_shapes[0] or ()))
    largest = b.add("ReduceMax", [x, b.constant(np.array(axes), "axes")], keepdims)
    return (
        largest if dim is None else (largest, b.add("ArgMax", [x], {"axis": axes[0], **keepdims}))
    )


def _decompose(builder: DecomposeBuilder, bound: Bound) -> Any:
    x, other = bound.tensors
    dim, keepdim = bound.attrs["dim"], bound.attrs["keepdim"]
    if other is not None:
        return builder.call("maximum", (x, other), part="maximum")
    dims = None if dim is None else (dim,)
    largest = builder.call("amax", (x,), {"dim": dims, "keepdim": keepdim}, part="amax")
    if dim is None:
        return largest
    index = builder.call("argmax", (x,), {"dim": dim, "keepdim": keepdim}, part="argmax")
    return largest, index


def _sample(rng: np.random.Generator) -> Sample:
    shape = tuple(int(v) for v in rng.integers(1, 7, 3))
    return Sample((shape, None), {"dim": int(rng.integers(-3, 3)), "keepdim": False})


register(
    OpSpec(
        name="max",
        family="reduce",
        rule=Rule.DECOMPOSED,
        roles=("input", "other"),
        targets=(FunctionTarget(torch.max, _bind), MethodTarget("max", _bind)),
        float_kernel=_max,
        lower=_lower,
        decompose=_decompose,
        march=limits.EXTREMUM,
        flops=input_elements,
        sample=_sample,
        doc="largest value, with its index where a dim is given; or the larger of two tensors",
    )
)
