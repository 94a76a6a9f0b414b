"""A mean, sum or extremum over more elements than a march reduces at once, dimension by dimension.

Means of equally many elements have the mean of all as their mean, so every step is the same
operator; its result is int16.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from qtune.dtype import QuantDType, qint16
from qtune.ops.elementwise.limits import MOST_REDUCED
from qtune.ops.spec import Bound, DecomposeBuilder, Shapes, Steps


def reduced(
    builder: DecomposeBuilder,
    op_name: str,
    x: Any,
    dims: Sequence[int] | None,
    *,
    part: str,
    keepdim: bool = True,
    forced_dtype: QuantDType | None = qint16,
) -> Any:
    """``op_name`` (mean, sum, amax, amin) of ``x`` over ``dims``, ``None`` meaning all of them.

    Dimensions go from the last one on, as many in a step as stay within ``MOST_REDUCED`` elements;
    the steps before the last are called ``<part>_0``, ``<part>_1``. A single dimension that is
    longer is left as it is.
    """
    shape = builder.shape(x)
    waiting = _dims(shape, dims)
    step = _step(shape, waiting)
    number = 0
    while step and len(step) < len(waiting):
        along = {"dim": tuple(step), "keepdim": True}
        x = builder.call(op_name, (x,), along, part=f"{part}_{number}", forced_dtype=qint16)
        waiting = [d for d in waiting if d not in step]
        step, number = _step(shape, waiting), number + 1
    # Dimensions that are reduced already have one element; they go with the last step.
    along = {"dim": dims, "keepdim": keepdim}
    return builder.call(op_name, (x,), along, part=part, forced_dtype=forced_dtype)


def steps_of(op_name: str) -> Steps:
    """The steps of ``op_name`` for a call with ``dim`` and ``keepdim``."""

    def applies(attrs: Mapping[str, Any], shapes: Shapes) -> bool:
        shape = shapes[0] or ()
        waiting = _dims(shape, attrs["dim"])
        return 0 < len(_step(shape, waiting)) < len(waiting)

    def emit(builder: DecomposeBuilder, bound: Bound) -> Any:
        (x,), attrs = bound.tensors, bound.attrs
        keepdim = attrs["keepdim"]
        return reduced(
            builder, op_name, x, attrs["dim"], part=op_name, keepdim=keepdim, forced_dtype=None
        )

    return Steps(applies, emit)


def _dims(shape: Sequence[int], dims: Sequence[int] | None) -> list[int]:
    every = range(len(shape)) if dims is None else dims
    return sorted(d % len(shape) for d in every)


def _step(shape: Sequence[int], waiting: Sequence[int]) -> list[int]:
    """The last dimensions of ``waiting`` that together are few enough elements."""
    for start in range(len(waiting)):
        if math.prod(shape[d] for d in waiting[start:]) <= MOST_REDUCED:
            return list(waiting[start:])
    return []
