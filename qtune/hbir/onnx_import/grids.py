"""Grids of imported QuantizeLinear and DequantizeLinear nodes (numerics.md section 1).

An imported zero point is kept as the range of the codes: ``q - zp`` lies in ``qmin - zp`` to
``qmax - zp``, at most 9 bits, and is carried by the smallest dtype that holds it. Every product and
sum of such codes is what a kernel that subtracts ``zp * sum(w)`` computes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from qtune.dtype import QuantDType, qint8, qint16
from qtune.errors import OnnxImportError
from qtune.hbir.attributes import node_attributes
from qtune.hbir.onnx_import.form import WEIGHT_LIMITS

Array = np.ndarray[Any, Any]

_RANGES = {
    np.dtype(kind): (int(np.iinfo(kind).min), int(np.iinfo(kind).max))
    for kind in (np.int8, np.uint8, np.int16, np.uint16)
}


@dataclass(frozen=True, slots=True)
class Grid:
    """``real = (q - zero_point) * scale``; ``axis`` is -1 for one scale."""

    scale: Array
    zero_point: int
    axis: int
    qmin: int
    qmax: int

    @property
    def carrier(self) -> QuantDType:
        """The dtype that carries ``q - zero_point``."""
        fits = qint8.qmin <= self.qmin and self.qmax <= qint8.qmax
        return qint8 if fits else qint16

    def along(self, rank: int) -> Array:
        """The scales so that they broadcast on a tensor of this rank."""
        return self.scale.reshape(*[1] * self.axis, -1, *[1] * (rank - self.axis - 1))


@dataclass(frozen=True, slots=True, eq=False)
class Codes:
    """What a QuantizeLinear gives: a float value and the grid it is brought to."""

    value: ir.Value
    grid: Grid
    source: ir.Value


def grid_of(node: ir.Node, data_of: Callable[[ir.Value], Array | None]) -> Grid:
    """The grid of a node; refuses forms that the BPU has not by name."""
    attrs = node_attributes(node)
    if attrs.get("block_size", 0):
        raise OnnxImportError(f"{node.name}: block-wise scales have no form here")
    scale, zero = (_constant(node, data_of, index) for index in (1, 2))
    if scale is None:
        raise OnnxImportError(f"{node.name}: its scale is computed while the model runs")
    if scale.dtype != np.float32 or not np.isfinite(scale).all() or (scale <= 0).any():
        raise OnnxImportError(f"{node.name}: its scales must be positive float32 numbers")
    source = node.inputs[0]
    if node.op_type == "DequantizeLinear" and source is not None and source.dtype is not None:
        element = np.dtype(source.dtype.numpy())
    else:
        element = np.dtype(np.uint8) if zero is None else zero.dtype
    if element == np.int32 and (zero is None or not zero.any()):
        return Grid(scale.reshape(-1), 0, _axis(node, attrs, scale), -(2**31), 2**31 - 1)
    if element not in _RANGES:
        raise OnnxImportError(
            f"{node.name}: {element} codes have no form here; activations may be int8, uint8, "
            "int16 or uint16, weights int8 or int16, biases int32 without zero point"
        )
    zeros = np.zeros(1, np.int64) if zero is None else zero.astype(np.int64).reshape(-1)
    if (zeros != zeros[0]).any():
        raise OnnxImportError(f"{node.name}: channels with different zero points have no form here")
    low, high = _RANGES[element]
    point = int(zeros[0])
    if low - point < qint16.qmin or high - point > qint16.qmax:
        raise OnnxImportError(
            f"{node.name}: {element} codes with zero point {point} don't fit in 16 bits less it; "
            "quantize 16-bit activations symmetrically (ActivationSymmetric of onnxruntime)"
        )
    axis = _axis(node, attrs, scale)
    return Grid(scale.reshape(-1), point, axis, low - point, high - point)


def _axis(node: ir.Node, attrs: dict[str, Any], scale: Array) -> int:
    if scale.size == 1:
        return -1
    source = node.inputs[0]
    rank = 0 if source is None or source.shape is None else len(source.shape)
    axis = int(attrs.get("axis", 1))
    return axis + rank if axis < 0 else axis


def _constant(
    node: ir.Node, data_of: Callable[[ir.Value], Array | None], index: int
) -> Array | None:
    value = node.inputs[index] if index < len(node.inputs) else None
    return None if value is None else data_of(value)


def same_grid(a: Grid, b: Grid) -> bool:
    """Whether both nodes of a pair state one grid."""
    return a.scale.tobytes() == b.scale.tobytes() and (a.zero_point, a.qmin, a.qmax) == (
        b.zero_point,
        b.qmin,
        b.qmax,
    )


def constant_of(data: Array, grid: Grid) -> Array:
    """The float32 values of constant integers."""
    scale = grid.scale.reshape(()) if grid.axis < 0 else grid.along(data.ndim)
    codes = data.astype(np.int64) - grid.zero_point
    return np.asarray(codes.astype(np.float64) * scale.astype(np.float64), dtype=np.float32)


def is_weight_grid(grid: Grid) -> bool:
    """Whether constants on this grid are weights: symmetric int8 or int16."""
    return (grid.qmin, grid.qmax) in WEIGHT_LIMITS


def codes_of(data: Array, grid: Grid) -> Array:
    """What QuantizeLinear makes of float constants on a weight grid: ties to even."""
    scale = grid.scale.reshape(()) if grid.axis < 0 else grid.along(data.ndim)
    return np.clip(np.rint(data / scale), grid.qmin, grid.qmax).astype(np.int64) + grid.zero_point
