"""Where each element of a Resize comes from: source positions, nearest indices, taps as a matrix.

The rules are those of the ONNX standard, one axis at a time (Resize, opsets 11 to 19).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

COORDINATES = (
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
)
"""The coordinate transformations that a position can be computed by without a region."""

_REACH = {"linear": 1, "cubic": 2}
"""How far the taps of a mode reach from a position, in source elements."""


@dataclass(frozen=True, slots=True)
class Axis:
    """One resized axis: its sizes before and after, and the scale that the file states."""

    before: int
    after: int
    scale: float

    def is_ratio(self) -> bool:
        """Whether the scale is that of the sizes, in float32, as files state it."""
        return float(np.float32(self.after / self.before)) == float(np.float32(self.scale))

    def positions(self, coordinates: str) -> Array:
        """The source position of every element, float64 [after]."""
        index = np.arange(self.after, dtype=np.float64)
        if coordinates == "align_corners":
            return index * ((self.before - 1) / (self.after - 1)) if self.after > 1 else index
        if coordinates == "asymmetric":
            return index / self.scale
        if coordinates == "pytorch_half_pixel" and self.after == 1:
            return np.zeros(1)
        middle = (index + 0.5) / self.scale - 0.5
        if coordinates == "half_pixel_symmetric":
            middle += self.before / 2 * (1 - self.after / (self.scale * self.before))
        return middle


def nearest(axis: Axis, coordinates: str, rounding: str) -> Array:
    """The source index of every element, int64 [after]."""
    position = axis.positions(coordinates)
    rounded = {
        "round_prefer_floor": np.ceil(position - 0.5),
        "round_prefer_ceil": np.floor(position + 0.5),
        "floor": np.floor(position),
        "ceil": np.ceil(position),
    }[rounding]
    return np.clip(rounded, 0, axis.before - 1).astype(np.int64)


@dataclass(frozen=True, slots=True)
class Taps:
    """The attributes that decide the weights of a linear or cubic Resize."""

    mode: str
    coordinates: str
    cubic: float
    antialias: bool
    exclude_outside: bool

    def matrix(self, axis: Axis) -> Array:
        """The matrix [after, before], float32, that resizes one axis: ``y = matrix @ x``."""
        position = axis.positions(self.coordinates)
        shrink = min(axis.scale, 1.0) if self.antialias else 1.0
        reach = int(np.ceil(_REACH[self.mode] / shrink))
        taps = np.floor(position)[:, None] + np.arange(-reach, reach + 1)
        weights = self._kernel((position[:, None] - taps) * shrink)
        is_outside = (taps < 0) | (taps > axis.before - 1)
        if self.exclude_outside:
            weights = np.where(is_outside, 0.0, weights)
        weights = weights / weights.sum(axis=1, keepdims=True)
        made = np.zeros((axis.after, axis.before))
        places = np.clip(taps, 0, axis.before - 1).astype(np.int64)
        np.add.at(made, (np.arange(axis.after)[:, None], places), weights)
        return made.astype(np.float32)

    def _kernel(self, distance: Array) -> Array:
        """The weight of a tap at this distance: a triangle, or the cubic with the factor ``a``."""
        d, a = np.abs(distance), self.cubic
        if self.mode == "linear":
            return np.asarray(np.maximum(1 - d, 0.0))
        near = ((a + 2) * d - (a + 3)) * d * d + 1
        far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
        return np.asarray(np.where(d <= 1, near, np.where(d < 2, far, 0.0)))
