"""vector_norm: of order 2 mul, sum, sqrt table; 1 abs, sum; infinity abs, max (numerics.md 3)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from qtune.ops.elementwise import limits
from qtune.ops.elementwise.binding import input_elements, refuse
from qtune.ops.norm.distance import before_the_root, dims_of, order_of
from qtune.ops.norm.parts import lower_by_parts
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


def _bound(input: Any, order: Any, dim: Any, keepdim: bool, **options: Any) -> Bound:
    refuse("a norm", **options)
    attrs = {"ord": order_of("a norm", order), "dim": dims_of(dim), "keepdim": bool(keepdim)}
    return Bound((input,), attrs)


def _bind(
    x: Any,
    ord: Any = 2,
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: Any = None,
    out: Any = None,
) -> Bound:
    return _bound(x, ord, dim, keepdim, dtype=dtype, out=out)


def _bind_linalg(
    input: Any,
    ord: Any = None,
    dim: Any = None,
    keepdim: bool = False,
    *,
    out: Any = None,
    dtype: Any = None,
    A: Any = None,
) -> Bound:
    dims = dims_of(dim)
    if ord not in (None, "fro") and (dims is None or len(dims) > 1):
        raise NotImplementedError(
            f"linalg.norm with ord={ord!r} over dim={dim} may be a norm of matrices, which has no "
            "integer form; use linalg.vector_norm for one of vectors"
        )
    order = 2 if ord in (None, "fro") else ord
    return _bound(input, order, dims, keepdim, dtype=dtype, out=out)


def _bind_norm(
    input: Any,
    p: Any = "fro",
    dim: Any = None,
    keepdim: bool = False,
    out: Any = None,
    dtype: Any = None,
) -> Bound:
    order = 2 if p in (None, "fro") else p
    return _bound(input, order, dim, keepdim, dtype=dtype, out=out)


def _bind_method(
    input: Any, p: Any = "fro", dim: Any = None, keepdim: bool = False, dtype: Any = None
) -> Bound:
    return _bind_norm(input, p, dim, keepdim, dtype=dtype)


def _vector_norm(
    input: torch.Tensor, *, ord: float, dim: tuple[int, ...] | None, keepdim: bool
) -> torch.Tensor:
    result: torch.Tensor = torch.linalg.vector_norm(input, ord, dim, keepdim)
    return result


def _decompose(builder: DecomposeBuilder, bound: Bound) -> Any:
    order = bound.attrs["ord"]
    found = before_the_root(
        builder, bound.tensors[0], order, bound.attrs["dim"], bound.attrs["keepdim"]
    )
    return builder.call("sqrt", (found,), part="sqrt") if order == 2 else found


def _sample(rng: np.random.Generator) -> Sample:
    shape = tuple(int(v) for v in rng.integers(1, 7, 3))
    dims = ((1,), (-1,), (0, 2), None)
    attrs = {
        "ord": (1.0, 2.0, math.inf)[int(rng.integers(3))],
        "dim": dims[int(rng.integers(len(dims)))],
        "keepdim": bool(rng.integers(2)),
    }
    return Sample((shape,), attrs)


register(
    OpSpec(
        name="vector_norm",
        family="norm",
        rule=Rule.DECOMPOSED,
        roles=("input",),
        targets=(
            FunctionTarget(torch.linalg.vector_norm, _bind),
            FunctionTarget(torch.linalg.norm, _bind_linalg),
            FunctionTarget(torch.norm, _bind_norm),
            MethodTarget("norm", _bind_method),
        ),
        float_kernel=_vector_norm,
        lower=lower_by_parts(_decompose),
        decompose=_decompose,
        march=limits.NOT_BERNOULLI,
        flops=input_elements,
        sample=_sample,
        doc="norm of order 1, 2 or infinity along dimensions",
    )
)
