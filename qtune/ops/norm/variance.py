"""What var and std share: mean, difference, square, mean of that (numerics.md section 3)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from qtune.dtype import QuantDType, qint16
from qtune.ops.norm.distance import dims_of
from qtune.ops.norm.parts import centered, random_rows
from qtune.ops.reduce.reducing import axes_of
from qtune.ops.reduce.stepwise import reduced
from qtune.ops.spec import Bound, DecomposeBuilder, Sample


def bind_variance(
    input: Any,
    dim: Any = None,
    unbiased: Any = None,
    keepdim: bool = False,
    *,
    correction: Any = 1,
    out: Any = None,
) -> Bound:
    """``var(x)``, ``var(x, unbiased)``, ``var(x, dim, unbiased, keepdim)``, with ``correction``."""
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    if unbiased is not None:
        correction = int(unbiased)
    attrs = {
        "dim": dims_of(dim) or None,
        "keepdim": bool(keepdim),
        "correction": 1 if correction is None else correction,
    }
    return Bound((input,), attrs)


def variance(builder: DecomposeBuilder, bound: Bound, dtype: QuantDType | None = None) -> Any:
    """Emit the parts; ``dtype`` of the result, ``None`` for the configured one."""
    (x,), attrs = bound.tensors, bound.attrs
    shape = builder.shape(x)
    dims = axes_of(attrs["dim"], len(shape))
    count = math.prod(shape[d] for d in dims)
    if count <= attrs["correction"]:
        raise NotImplementedError(
            f"a variance of {count} elements with correction={attrs['correction']} is undefined"
        )
    difference = centered(builder, x, dims)
    square = builder.call("mul", (difference, difference), part="square", forced_dtype=qint16)
    keepdim = attrs["keepdim"]
    if attrs["correction"] == 0:
        return reduced(
            builder, "mean", square, dims, part="var", keepdim=keepdim, forced_dtype=dtype
        )
    total = reduced(builder, "mean", square, dims, part="var_mean", keepdim=keepdim)
    factor = count / (count - attrs["correction"])
    return builder.call("mul", (total, factor), part="var", forced_dtype=dtype)


def sample_variance(rng: np.random.Generator) -> Sample:
    """A map, its variance along one, two or all dimensions."""
    shape, dims = random_rows(rng), ((2,), (-1,), (0, 2), None)
    attrs = {
        "dim": dims[int(rng.integers(len(dims)))],
        "keepdim": bool(rng.integers(2)),
        "correction": int(rng.integers(2)),
    }
    return Sample((shape,), attrs)
