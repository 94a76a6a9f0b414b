"""normalize: the input times the table of its norm's inverse, int16 inside (numerics.md 3)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from qtune.dtype import qint16
from qtune.ops.elementwise import limits
from qtune.ops.elementwise.binding import input_elements, refuse
from qtune.ops.norm.distance import ORDERS, before_the_root, dims_of, order_of
from qtune.ops.norm.parts import lower_by_parts, random_rows
from qtune.ops.registry import register
from qtune.ops.spec import Bound, DecomposeBuilder, FunctionTarget, OpSpec, Rule, Sample


def _bind(input: Any, p: Any = 2.0, dim: Any = 1, eps: float = 1e-12, out: Any = None) -> Bound:
    refuse("normalize", out=out)
    attrs = {"p": order_of("normalize", p), "dim": dims_of(dim), "eps": float(eps)}
    return Bound((input,), attrs)


def _normalize(input: torch.Tensor, *, p: float, dim: tuple[int, ...], eps: float) -> torch.Tensor:
    return F.normalize(input, p, dim, eps)  # type: ignore[arg-type]


def _decompose(builder: DecomposeBuilder, bound: Bound) -> Any:
    (x,), attrs = bound.tensors, bound.attrs
    order, eps = attrs["p"], attrs["eps"]
    size = before_the_root(builder, x, order, attrs["dim"], True)
    table, least = ("rsqrt", eps * eps) if order == 2 else ("reciprocal", eps)
    inner = None if order == math.inf else qint16  # the largest value is on the input's grid
    limit = {"min": least, "max": None}
    size = builder.call("clamp_scalar", (size,), limit, part="clamp", forced_dtype=inner)
    inverse = builder.call(table, (size,), part=table, forced_dtype=qint16)
    return builder.call("mul", (x, inverse), part="mul")


def _sample(rng: np.random.Generator) -> Sample:
    shape, dim = random_rows(rng), ((2,), (-1,), (1, 2))[int(rng.integers(3))]
    attrs = {"p": ORDERS[int(rng.integers(3))], "dim": dim, "eps": 1e-12}
    return Sample((shape,), attrs)


register(
    OpSpec(
        name="normalize",
        family="norm",
        rule=Rule.DECOMPOSED,
        roles=("input",),
        targets=(FunctionTarget(F.normalize, _bind),),
        float_kernel=_normalize,
        lower=lower_by_parts(_decompose),
        decompose=_decompose,
        march=limits.NOT_BERNOULLI,
        flops=input_elements,
        sample=_sample,
        doc="input divided by its norm along a dimension",
    )
)
