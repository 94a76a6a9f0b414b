"""masked_softmax: softmax over the positions that a mask leaves; the others get exactly 0.

A blocked score is replaced by the smallest of its row, which leaves the scale of the scores as it
is and the largest free one where it is; after exp the blocked powers become 0. A row without a free
position gives zeros (its sum is held at 1), or with ``spread`` the same weight everywhere: what a
softmax makes of a row that was filled with one finite number.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from qtune.dtype import qint16
from qtune.ops.composed import lower_by_parts
from qtune.ops.elementwise import limits
from qtune.ops.elementwise.binding import input_elements
from qtune.ops.reduce.normalizing import inverse
from qtune.ops.registry import register
from qtune.ops.spec import Bound, DecomposeBuilder, OpSpec, Rule, Sample


def _float_kernel(
    input: torch.Tensor, mask: torch.Tensor, *, dim: int, spread: bool = False
) -> torch.Tensor:
    """``mask`` is True where a position is blocked."""
    if spread:
        return torch.softmax(input.masked_fill(mask, torch.finfo(input.dtype).min), dim)
    weights = torch.softmax(input.masked_fill(mask, -torch.inf), dim)
    return weights.masked_fill(mask, 0.0)


def _decompose(builder: DecomposeBuilder, bound: Bound) -> Any:
    x, mask = bound.tensors
    attrs = bound.attrs
    return emit_masked(builder, x, mask, attrs["dim"], spread=attrs.get("spread", False))


def emit_masked(
    builder: DecomposeBuilder, x: Any, mask: Any, dim: int, *, spread: bool = False
) -> Any:
    """The parts of a softmax along ``dim`` over the positions where ``mask`` is False."""
    along = {"dim": (dim,), "keepdim": True}
    smallest = builder.call("amin", (x,), along, part="min")
    free = builder.call("where", (mask, smallest, x), part="free", forced_dtype=qint16)
    largest = builder.call("amax", (free,), along, part="max")
    shifted = builder.call("sub", (free, largest), part="sub", forced_dtype=qint16)
    powers = builder.call("exp", (shifted,), part="exp", forced_dtype=qint16)
    hidden = (
        _unless_full(builder, mask, dim - len(builder.shape(x)) * (dim >= 0)) if spread else mask
    )
    powers = builder.call("masked_fill", (powers, hidden, 0.0), part="zero", forced_dtype=qint16)
    length = float(builder.shape(x)[dim])
    total = builder.call(
        "sum", (powers,), along, part="sum", forced_dtype=qint16, bounds=(0.0, length)
    )
    total = builder.call("clamp_scalar", (total,), {"min": 1.0, "max": None}, part="one")
    factor = inverse(builder, total, length)
    return builder.call("mul", (powers, factor), part="mul")


def _unless_full(builder: DecomposeBuilder, mask: Any, dim: int) -> Any:
    """The mask without its rows along ``dim`` (negative) that block every position."""
    full = mask
    if -dim <= len(builder.shape(mask)):
        full = builder.call("all", (mask,), {"dim": (dim,), "keepdim": True}, part="full")
    others = builder.call("logical_not", (full,), part="not_full")
    return builder.call("logical_and", (mask, others), part="hidden")


def _sample(rng: np.random.Generator) -> Sample:
    rows, columns = (int(v) for v in rng.integers(1, 7, 2))
    return Sample(
        ((2, 3, rows, columns), (rows, columns)), {"dim": -1, "spread": bool(rng.integers(2))}
    )


register(
    OpSpec(
        name="masked_softmax",
        family="attention",
        rule=Rule.DECOMPOSED,
        roles=("input", "mask"),
        targets=(),
        float_kernel=_float_kernel,
        lower=lower_by_parts(_decompose),
        decompose=_decompose,
        march=limits.NOT_BERNOULLI,
        flops=input_elements,
        sample=_sample,
        doc="softmax over the positions that a mask leaves; int16 inside",
    )
)
