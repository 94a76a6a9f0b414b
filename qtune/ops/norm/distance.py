"""The vector norms that have an integer form: of order 1, 2 and infinity (numerics.md 3)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from qtune.dtype import qint16
from qtune.ops.reduce.stepwise import reduced
from qtune.ops.spec import DecomposeBuilder

ORDERS = (1.0, 2.0, math.inf)


def order_of(operator: str, order: Any) -> float:
    """The order as a float; any other than 1, 2 and infinity is refused by name."""
    if not isinstance(order, str) and order in ORDERS:
        return float(order)
    raise NotImplementedError(
        f"{operator} has an integer form for the orders 1, 2 and infinity only, got {order!r}. "
        "Use one of these, or keep the call outside the quantized region"
    )


def dims_of(dim: Any) -> tuple[int, ...] | None:
    """Dimensions as a tuple; ``None`` means all of them."""
    if dim is None:
        return None
    return (dim,) if isinstance(dim, int) else tuple(dim)


def before_the_root(
    builder: DecomposeBuilder, x: Any, order: float, dims: Sequence[int] | None, keepdim: bool
) -> Any:
    """What the norm is the root of (order 2), or the norm itself; qint16 where it has a scale."""
    if order == 2:
        square = builder.call("mul", (x, x), part="square", forced_dtype=qint16)
        return reduced(builder, "sum", square, dims, part="sum", keepdim=keepdim)
    size = builder.call("abs", (x,), part="abs")
    if order == 1:
        return reduced(builder, "sum", size, dims, part="sum", keepdim=keepdim)
    every = tuple(range(len(builder.shape(x)))) if dims is None else dims
    return builder.call("amax", (size,), {"dim": every, "keepdim": keepdim}, part="max")
