"""Small arrays in a file of baselines: one text per row, and the rules of ``assert_close``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from qtune.errors import ArgumentError, BaselineError
from qtune.testing.distances import Distances, distances
from qtune.testing.elements import INTEGERS, Array, Elements, elements, type_difference
from qtune.testing.tolerance import Tolerance

LARGEST = 1024
"""Elements that a file takes; a diff of more is read by nobody."""
_ROW = 16
_TEXT_TYPES: Mapping[str, Any] = {
    "float16": np.float16,
    "float32": np.float32,
    "bfloat16": np.float32,
}
"""Types in which the shortest text of a number is exact."""


def read_array(name: str, value: Any) -> Elements:
    """``value`` (a tensor, an array, a sequence of numbers) as elements; refuses what is large."""
    if isinstance(value, list | tuple):
        try:
            value = np.asarray(value)
        except ValueError as error:
            raise ArgumentError(f"baseline of {name!r}: {error}") from None
    found = elements(value, f"baseline of {name!r}")
    if found.codes is not None or found.kind == "c" or found.values.dtype.itemsize > 8:
        raise ArgumentError(
            f"baseline of {name!r}: expected real numbers of up to 64 bits but got {found.dtype}; "
            "pass codes (int_repr()), or real and imaginary parts"
        )
    if found.values.size > LARGEST:
        raise ArgumentError(
            f"baseline of {name!r}: {found.values.size} elements are too many for a file that is "
            f"read in diffs (at most {LARGEST}); store a metric of them, or baseline.outputs(name, "
            "module, inputs), which stores a hash"
        )
    return found


def to_value(array: Elements) -> dict[str, Any]:
    """What the file holds: dtype, shape, and up to 16 numbers of a row per text."""
    kind = _TEXT_TYPES.get(array.dtype, np.float64)
    words = [_text(number, kind) for number in array.values.flat]
    row = min(array.values.shape[-1] if array.values.ndim else 1, _ROW) or 1
    texts = [" ".join(words[start : start + row]) for start in range(0, len(words), row)]
    return {"dtype": array.dtype, "shape": list(array.values.shape), "values": texts}


def from_value(value: Mapping[str, Any], where: str) -> Elements:
    """What ``to_value`` gave; ``BaselineError`` naming ``where`` for anything else."""
    try:
        dtype, shape = str(value["dtype"]), tuple(int(size) for size in value["shape"])
        words = [word for row in value["values"] for word in str(row).split()]
        return Elements(_numbers(words, dtype).reshape(shape), dtype)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise BaselineError(f"{where} is damaged: {type(error).__name__}: {error}") from None


def compare(
    name: str, got: Elements, expected: Elements, tolerance: Tolerance
) -> tuple[str, str] | Distances:
    """The distances of all elements, or what to call both sides where shape or dtype differ."""
    different = type_difference(got, expected)
    return different or distances(got, expected, tolerance, f"baseline of {name!r}")


def difference_lines(found: Distances, most: int = 5) -> list[str]:
    """The worst elements outside of the tolerance: index, value, baseline."""
    return [
        f"  at {found.index(flat)}: {found.got[flat]!s}, baseline {found.expected[flat]!s}"
        for flat in found.worst(most)
    ]


def _numbers(words: list[str], dtype: str) -> Array:
    if dtype == "bool":
        return np.array([{"0": False, "1": True}[word] for word in words], bool)
    kind = np.dtype(_TEXT_TYPES.get(dtype, dtype))
    if kind.kind in INTEGERS:
        return np.array([int(word) for word in words], kind)
    return np.array([kind.type(word) for word in words], kind).astype(np.float64)


def _text(number: Any, kind: Any) -> str:
    if isinstance(number, bool | np.bool_ | np.integer):
        return str(int(number))
    return str(kind(number))
