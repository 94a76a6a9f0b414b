"""Places of elements in a flat tensor: what gathers and scatters by constant indices share."""

from __future__ import annotations

from typing import Any

import numpy as np

from qtune.ops.kernel import Builder, Value

Array = np.ndarray[Any, Any]


def places_of(shape: tuple[int, ...], indices: Array) -> Array:
    """The flat places that GatherND takes from a tensor of ``shape`` with one batch dimension.

    ``indices``: [shape[0], ..., depth]; negative ones count from the end.
    """
    numbers = np.arange(int(np.prod(shape)), dtype=np.int64).reshape(shape)
    batch = np.arange(shape[0]).reshape(-1, *[1] * (indices.ndim - 2))
    return np.asarray(numbers[(batch, *np.moveaxis(indices, -1, 0))])


def flat(b: Builder, value: Value | None) -> Value:
    """The elements of ``value`` in one row."""
    made: Value = b.add("Reshape", [value, b.constant(np.array([-1], np.int64), "row")])
    return made


def replaced(b: Builder, data: Any, updates: Any, places: Array, shape: tuple[int, ...]) -> Value:
    """``data`` of ``shape`` with element i of ``updates`` at the flat place ``places[i]``."""
    count = int(np.prod(shape))
    source = np.arange(count, dtype=np.int64)
    source[places.reshape(-1)] = count + np.arange(places.size)
    both = b.add("Concat", [flat(b, data), flat(b, updates)], {"axis": 0})
    where = b.constant(source.reshape(shape), "places")
    made: Value = b.add("Gather", [both, where], {"axis": 0})
    return made
