"""How far two tensors of one shape and dtype are apart, element by element, and which miss.

Integers are subtracted exactly: ``-128`` and ``127`` are 255 apart, the ends of int64
``2**64 - 1``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from qtune.errors import ArgumentError
from qtune.testing.elements import INTEGERS, Array, Elements
from qtune.testing.tolerance import Tolerance

_LARGEST = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Distances:
    """All elements of a pair, flat in row-major order.

    ``distance``: steps or absolute differences, uint64 for integers; ``relative``: divided by
    ``abs(expected)``; ``missed``: outside of the tolerance; ``nan``: missed because of a NaN, whose
    distance is NaN. ``got`` and ``expected``: what a message shows.
    """

    shape: tuple[int, ...]
    distance: Array
    relative: Array
    missed: Array
    nan: Array
    got: Array
    expected: Array

    def worst(self, count: int) -> list[int]:
        """Flat indices of the worst missed elements: NaN first, then by distance, then in order."""
        found = np.flatnonzero(self.missed)
        key = self.distance[found]
        rank = np.where(self.nan[found], np.inf, key.astype(np.float64))
        return [int(i) for i in found[np.lexsort((found, -rank, ~self.nan[found]))][:count]]

    def largest(self, values: Array) -> float:
        """The largest of ``values`` (NaN if an element missed because of one), 0 for none."""
        if self.nan.any():
            return float("nan")
        kept = values[~np.isnan(values)] if values.dtype.kind == "f" else values
        top = kept.max().item() if kept.size else 0
        return int(top) if values.dtype.kind in INTEGERS else float(top)

    def index(self, flat: int) -> list[int]:
        """The index of an element by its flat one."""
        return [int(i) for i in np.unravel_index(flat, self.shape)] if self.shape else []


def distances(got: Elements, expected: Elements, tolerance: Tolerance, where: str) -> Distances:
    """Compare two sides of equal shape and dtype."""
    if tolerance.steps is None:
        a, b = got.values, expected.values
        distance = _difference(a, b)
        with np.errstate(invalid="ignore", over="ignore"):
            room = tolerance.atol + tolerance.rtol * np.abs(_wide(b))
        # an infinity leaves infinite room, but equals only itself
        missed = ~((distance == 0) | (np.isfinite(distance) & (distance <= room)))
    else:
        a, b = _codes(got, expected, tolerance, where)
        distance = _difference(a, b)
        # codes are whole, so nothing lies between the floor and the limit itself
        missed = ~(distance <= np.uint64(min(math.floor(min(tolerance.steps, _LARGEST)), _LARGEST)))
    nan = _is_nan(a) | _is_nan(b)
    if tolerance.equal_nan:
        both = _is_nan(a) & _is_nan(b)
        missed, nan = missed & ~both, nan & ~both
    relative = _relative(distance, b)
    in_codes = a is got.codes
    shown = (a, b) if in_codes else (got.values, expected.values)
    flat = [np.ravel(item) for item in (distance, relative, missed, nan, *shown)]
    return Distances(got.values.shape, *flat)


def _codes(
    got: Elements, expected: Elements, tolerance: Tolerance, where: str
) -> tuple[Array, Array]:
    """Both sides in codes: integers as they are, real values rounded onto the grid."""
    if got.codes is not None and expected.codes is not None:
        return got.codes, expected.codes
    if got.kind in INTEGERS and expected.kind in INTEGERS:
        return got.values, expected.values
    scale = got.scales or expected.scales or tolerance.scale
    if "c" in (got.kind, expected.kind):
        raise ArgumentError(f"{where}: complex values have no codes to count steps in; use atol")
    if scale is None:
        raise ArgumentError(
            f"{where}: {got.dtype} values have no codes to count steps in; give scale=, or use "
            "atol and rtol"
        )
    grid = scale.along(got.values.shape, where)
    with np.errstate(invalid="ignore", over="ignore"):
        a, b = (np.floor(side.values / grid + 0.5) for side in (got, expected))
    return a, b


def _difference(a: Array, b: Array) -> Array:
    """``abs(a - b)``: uint64 for integers, else float64 or wider; equal infinities are 0 apart."""
    if a.dtype.kind in INTEGERS and b.dtype.kind in INTEGERS:
        return _integer_difference(a, b)
    with np.errstate(invalid="ignore", over="ignore"):
        distance = np.abs(a.astype(_double(a)) - b.astype(_double(b)))
    opposite = np.isnan(distance) & ~(_is_nan(a) | _is_nan(b))  # inf - inf
    return np.asarray(np.where(a == b, 0.0, np.where(opposite, np.inf, distance)))


def _integer_difference(a: Array, b: Array) -> Array:
    if a.dtype != b.dtype:  # a number of Python against an array of one element
        return np.asarray(min(abs(int(a) - int(b)), _LARGEST), np.uint64)
    if a.dtype != np.uint64:
        a, b = a.astype(np.int64), b.astype(np.int64)
    upper, lower = np.maximum(a, b).astype(np.uint64), np.minimum(a, b).astype(np.uint64)
    with np.errstate(over="ignore"):  # modulo 2**64 it is the true one, which lies below 2**64
        return np.asarray(upper - lower)


def _double(value: Array) -> Any:
    return np.result_type(value.dtype, np.float64)


def _wide(value: Array) -> Array:
    return value.astype(_double(value))


def _is_nan(value: Array) -> Array:
    return np.asarray(np.isnan(value) if value.dtype.kind in "fc" else np.zeros(value.shape, bool))


def _relative(distance: Array, expected: Array) -> Array:
    size = np.abs(_wide(expected))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratio = distance.astype(np.float64) / size
    return np.asarray(np.where(distance == 0, 0.0, np.where(np.isinf(distance), np.inf, ratio)))
